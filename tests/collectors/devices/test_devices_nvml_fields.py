"""What NVML says of GPUs, through the real binding and a fake driver: fields, processes, parts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.devices.bounded import BoundedReader
from collectors.devices.device_port import ALL, SLOW, Field
from collectors.records.basics import FailureKind, ReadFailure
from tests.fake_nvml_kit import Clock, FakeDriver

HEALTHY = {
    Field.UTILISATION: 0,
    Field.MEMORY_USED: 8 << 30,
    Field.MEMORY_TOTAL: 80 << 30,
    Field.POWER: 300_000,
    Field.POWER_LIMIT: 700_000,
    Field.TEMPERATURE: 41,
    Field.SM_CLOCK: 1980,
    Field.MEMORY_CLOCK: 2619,
    Field.PCIE_TX: 3 << 20,
    Field.PCIE_RX: 5 << 20,
    Field.NVLINKS_UP: 18,
    Field.NVLINKS_DOWN: 0,
    Field.NVLINK_TX: 0,
    Field.PCIE_GENERATION: 5,
    Field.PCIE_GENERATION_MAX: 5,
    Field.PCIE_REPLAYS: 0,
    Field.XID_EVENTS: 0,
}


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    return FakeDriver(tmp_path)


@pytest.fixture
def reader(driver: FakeDriver) -> Iterator[BoundedReader]:
    bounded = BoundedReader(driver.reader, deadline_s=20, boottime_ns=Clock())
    yield bounded
    bounded.close()


def test_nvml_eight_healthy_gpus_give_every_field(reader: BoundedReader) -> None:
    inventory = reader.open()
    assert (inventory.devices, inventory.driver) == (8, "550.54.15")
    readings = [reader.read(index, ALL) for index in range(8)]
    assert len({reading.id for reading in readings}) == 8
    assert readings[3].id == "GPU-00000000-0000-0000-0000-000000000003"
    for reading in readings:
        assert HEALTHY.items() <= reading.values.items()
        assert set(reading.gaps) == {Field.FAN}  # an SXM board has none
        assert reading.begin_ns <= reading.end_ns


def test_nvml_throughput_is_told_between_two_samples_of_the_gpu(
    driver: FakeDriver, reader: BoundedReader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_GPM", str(tmp_path / "held"))
    assert reader.open().throughput_is_cheap
    driver.play("0 gpm.20 value 700", "0 gpm.21 error 999", "* nvmlDeviceGetPcieThroughput error 3")
    found = reader.read(0, SLOW)
    assert found.values == {Field.PCIE_TX: 700 << 20}
    assert found.gaps[Field.PCIE_RX].kind is FailureKind.FAILED
    driver.play("0 nvmlGpmSampleGet error 15")
    assert {gap.kind for gap in reader.read(0, SLOW).gaps.values()} == {FailureKind.UNPLUGGED}
    driver.play("0 gpm.21 value 9")
    assert reader.read(0, SLOW).values == {Field.PCIE_TX: 3 << 20, Field.PCIE_RX: 9 << 20}
    assert (tmp_path / "held").read_text() == "8"


@pytest.mark.parametrize(
    "without", ["* nvmlGpmQueryDeviceSupport value 0", "7 nvmlGpmSampleGet error 3"]
)
def test_nvml_throughput_is_watched_where_a_gpu_keeps_no_samples(
    driver: FakeDriver,
    reader: BoundedReader,
    without: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_NVML_GPM", str(tmp_path / "held"))
    driver.play(without)
    assert not reader.open().throughput_is_cheap
    assert reader.read(0, SLOW).values == {Field.PCIE_TX: 1_000_000, Field.PCIE_RX: 2_000_000}
    held = tmp_path / "held"
    assert not held.exists() or held.read_text() == "0"


def test_nvml_unsupported_and_failing_fields_are_gaps_with_their_kind(
    reader: BoundedReader, driver: FakeDriver
) -> None:
    driver.play(
        "0 nvmlDeviceGetPowerUsage error 3",
        "0 nvmlDeviceGetTemperature error 999",
        "0 nvmlDeviceGetTotalEccErrors error 4",
    )
    reader.open()
    reading = reader.read(0, ALL)
    assert reading.gaps[Field.POWER].kind is FailureKind.UNSUPPORTED
    assert reading.gaps[Field.TEMPERATURE].kind is FailureKind.FAILED
    assert reading.gaps[Field.ECC_VOLATILE_CORRECTED].kind is FailureKind.NO_PERMISSION
    assert reading.values[Field.UTILISATION] == 0
    denied = [gap for gap in reading.gaps.values() if gap.kind is FailureKind.NO_PERMISSION]
    assert len(denied) == 4


def test_nvml_failing_read_gives_no_earlier_value_and_comes_back(
    reader: BoundedReader, driver: FakeDriver
) -> None:
    reader.open()
    assert reader.read(0, ALL).values[Field.TEMPERATURE] == 41
    driver.play("0 nvmlDeviceGetTemperature error 999")
    assert Field.TEMPERATURE not in reader.read(0, ALL).values
    driver.play("0 nvmlDeviceGetTemperature value 55")
    assert reader.read(0, ALL).values[Field.TEMPERATURE] == 55


def test_nvml_cleared_errors_clear(reader: BoundedReader, driver: FakeDriver) -> None:
    driver.play("1 nvmlDeviceGetTotalEccErrors.1.0 value 7", "1 nvmlDeviceGetRemappedRows value 1")
    reader.open()
    hurt = reader.read(1, ALL).values
    assert (hurt[Field.ECC_VOLATILE_UNCORRECTED], hurt[Field.ROWS_CORRECTED]) == (7, 1)
    assert hurt[Field.ECC_VOLATILE_CORRECTED] == hurt[Field.ECC_AGGREGATE_UNCORRECTED] == 0
    driver.play()
    assert reader.read(1, ALL).values[Field.ECC_VOLATILE_UNCORRECTED] == 0


def test_nvml_unplugged_gpu_is_all_gaps_and_the_others_are_not(
    reader: BoundedReader, driver: FakeDriver
) -> None:
    reader.open()
    reader.read(2, ALL)
    driver.play("2 * error 15")
    gone = reader.read(2, ALL)
    assert not gone.values
    assert {gap.kind for gap in gone.gaps.values()} == {FailureKind.UNPLUGGED}
    assert gone.id == "GPU-00000000-0000-0000-0000-000000000002"
    assert HEALTHY.items() <= reader.read(3, ALL).values.items()


def test_nvml_a_field_that_is_not_found_is_no_gpu_that_is_lost(
    reader: BoundedReader, driver: FakeDriver
) -> None:
    driver.play("0 nvmlDeviceGetPcieReplayCounter error 6")
    reader.open()
    reading = reader.read(0, ALL)
    assert reading.gaps[Field.PCIE_REPLAYS].kind is FailureKind.UNSUPPORTED
    assert reading.values[Field.TEMPERATURE] == 41


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("nvmlDeviceGetTemperature value 2112", Field.TEMPERATURE),
        ("nvmlDeviceGetPowerUsage value 3700000000", Field.POWER),
        ("nvmlDeviceGetCurrPcieLinkWidth value 4294967295", Field.PCIE_WIDTH),
        (f"nvmlDeviceGetTotalEccErrors.1.0 value {2**64 - 1}", Field.ECC_VOLATILE_UNCORRECTED),
    ],
)
def test_nvml_values_that_no_board_has_are_gaps(
    reader: BoundedReader, driver: FakeDriver, call: str, field: Field
) -> None:
    driver.play(f"0 {call}")
    reader.open()
    assert reader.read(0, ALL).gaps[field].kind is FailureKind.IMPLAUSIBLE
    assert field in reader.read(1, ALL).values


def test_nvml_links_that_are_down_are_counted(reader: BoundedReader, driver: FakeDriver) -> None:
    driver.play(
        "0 nvmlDeviceGetNvLinkState.4 value 0",
        "0 nvmlDeviceGetNvLinkErrorCounter.3.2 value 9",
        "1 nvmlDeviceGetNvLinkState error 3",
    )
    reader.open()
    linked, none = reader.read(0, ALL), reader.read(1, ALL)
    assert (linked.values[Field.NVLINKS_UP], linked.values[Field.NVLINKS_DOWN]) == (17, 1)
    assert linked.values[Field.NVLINK_ERRORS] == 9
    assert none.gaps[Field.NVLINKS_UP].kind is FailureKind.UNSUPPORTED


def test_nvml_link_bytes_and_replays_are_the_drivers_counts(
    reader: BoundedReader, driver: FakeDriver
) -> None:
    driver.play(
        "0 nvmlDeviceGetFieldValues.138 value 5000000000",
        "0 nvmlDeviceGetFieldValues.139 error 3",
        "0 nvmlDeviceGetPcieReplayCounter value 6",
        "1 nvmlDeviceGetFieldValues error 15",
    )
    reader.open()
    told, lost = reader.read(0, ALL), reader.read(1, ALL)
    assert told.values[Field.NVLINK_TX] == 5_000_000_000 * 1024
    assert told.gaps[Field.NVLINK_RX].kind is FailureKind.UNSUPPORTED
    assert told.values[Field.PCIE_REPLAYS] == 6
    assert lost.gaps[Field.NVLINK_TX].kind is FailureKind.UNPLUGGED


def test_nvml_xid_events_are_counted_for_their_gpu(
    reader: BoundedReader, driver: FakeDriver
) -> None:
    reader.open()
    driver.play("* xid value 5 79 3")
    other, hit = reader.read(0, ALL).values, reader.read(5, ALL).values
    assert (other[Field.XID_EVENTS], hit[Field.XID_EVENTS], hit[Field.XID_LAST]) == (0, 3, 79)
    assert reader.read(5, ALL).values[Field.XID_EVENTS] == 3


def test_nvml_lost_gpu_is_still_named_by_its_last_xid(
    reader: BoundedReader, driver: FakeDriver
) -> None:
    """The event comes when the GPU can no longer say who it is."""
    reader.open()
    driver.play("5 * error 15", "* xid value 5 79 1")
    hit, other = reader.read(5, ALL), reader.read(4, ALL)
    assert (hit.values, hit.id[-1]) == ({Field.XID_EVENTS: 1, Field.XID_LAST: 79}, "5")
    assert not hit.answered
    assert other.answered
    assert other.values[Field.XID_EVENTS] == 0


def test_nvml_processes_have_memory_share_and_cgroup(
    reader: BoundedReader, driver: FakeDriver
) -> None:
    me = os.getpid()
    driver.play(
        f"0 nvmlDeviceGetComputeRunningProcesses_v3 value {me} 4096",
        f"0 nvmlDeviceGetProcessUtilization value {me} 37",
        f"1 nvmlDeviceGetComputeRunningProcesses_v3 value {me} {(1 << 64) - 1}",
        "1 nvmlDeviceGetProcessUtilization error 3",
    )
    reader.open()
    told = reader.read(0, (), processes=True).processes
    untold = reader.read(1, (), processes=True).processes
    assert isinstance(told, tuple)
    assert isinstance(untold, tuple)
    assert (told[0].pid, told[0].memory_bytes, told[0].sm_percent) == (me, 4096, 37)
    assert told[0].cgroup.startswith("/")
    assert told[0].name == Path("/proc/self/comm").read_text(encoding="utf-8").strip()
    assert isinstance(untold[0].memory_bytes, ReadFailure)
    assert isinstance(untold[0].sm_percent, ReadFailure)


def test_nvml_mig_lists_its_parts_and_does_not_invent_utilisation(
    reader: BoundedReader, driver: FakeDriver
) -> None:
    driver.play("0 nvmlDeviceGetMigMode value 1 1", "0 mig_instances value 3")
    reader.open()
    reading = reader.read(0, ALL, processes=True)
    assert isinstance(reading.partitions, tuple)
    assert len(reading.partitions) == 3
    assert all(part.id.startswith("MIG-") for part in reading.partitions)
    assert reading.partitions[0].memory_used_bytes == 8 << 30
    assert reading.gaps[Field.UTILISATION].kind is FailureKind.UNSUPPORTED
    assert reader.read(1, ALL, processes=True).partitions == ()


def test_nvml_mig_instances_tell_their_share_between_two_looks(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_GPM", str(tmp_path / "held"))
    mig = ("0 nvmlDeviceGetMigMode value 1 1", "0 mig_instances value 3")
    driver.play(*mig, "101 gpm.2 value 73", "102 gpm.2 error 3")
    reader = BoundedReader(driver.reader, deadline_s=20)
    try:
        reader.open()
        looks = [reader.read(0, (), processes=True).partitions for _ in range(3)]
        shares = [[p.sm_percent for p in look] for look in looks if isinstance(look, tuple)]
        kinds = {one.kind for one in shares[0] if isinstance(one, ReadFailure)}
        assert kinds == {FailureKind.NOT_YET}
        assert shares[1][:2] == shares[2][:2] == [40, 73]
        assert isinstance(shares[1][2], ReadFailure)
        driver.play(*mig, "0 nvmlGpmQueryDeviceSupport value 0")  # as before Hopper
        before_hopper = reader.read(0, (), processes=True).partitions
        assert isinstance(before_hopper, tuple)
        assert before_hopper[0].memory_used_bytes == 8 << 30
        unsupported = ReadFailure(FailureKind.UNSUPPORTED, "Not Supported")
        assert {p.sm_percent for p in before_hopper} == {unsupported}
        assert (tmp_path / "held").read_text() == "8"  # for the links; of instances none
    finally:
        reader.close()
