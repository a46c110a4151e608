"""NVML through the real binding and a fake driver, in the child process that bounds it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from edge_agent.devices.bounded import BoundedReader
from edge_agent.devices.nursery import Nursery
from edge_agent.devices.port import (
    ALL,
    DevicesUnavailable,
    Field,
    Gap,
    GapKind,
)
from edge_agent.sources.devices import DevicesSource
from tests.fake_nvml_kit import FakeDriver
from transport.privileges import harden

HEALTHY = {
    Field.UTILISATION: 0,
    Field.MEMORY_USED: 8 << 30,
    Field.MEMORY_TOTAL: 80 << 30,
    Field.POWER: 300_000,
    Field.POWER_LIMIT: 700_000,
    Field.TEMPERATURE: 41,
    Field.SM_CLOCK: 1980,
    Field.MEMORY_CLOCK: 2619,
    Field.PCIE_TX: 1_000_000,
    Field.PCIE_RX: 2_000_000,
    Field.NVLINKS_UP: 18,
    Field.NVLINKS_DOWN: 0,
    Field.NVLINK_TX: 0,
    Field.PCIE_GENERATION: 5,
    Field.PCIE_GENERATION_MAX: 5,
    Field.PCIE_REPLAYS: 0,
    Field.XID_EVENTS: 0,
}


class Clock:
    """CLOCK_BOOTTIME by hand."""

    def __init__(self) -> None:
        self.now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def __call__(self) -> int:
        return self.now_ns


class _Overheard:
    """A connection whose questions are noted."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.questions: list[tuple[Any, ...]] = []

    def send(self, question: tuple[Any, ...]) -> None:
        self.questions.append(question)
        self._connection.send(question)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    return FakeDriver(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reader(driver: FakeDriver, clock: Clock) -> Iterator[BoundedReader]:
    bounded = BoundedReader(driver.reader, deadline_s=20, boottime_ns=clock)
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
    assert reading.gaps[Field.POWER].kind is GapKind.UNSUPPORTED
    assert reading.gaps[Field.TEMPERATURE].kind is GapKind.FAILED
    assert reading.gaps[Field.ECC_VOLATILE_CORRECTED].kind is GapKind.NO_PERMISSION
    assert reading.values[Field.UTILISATION] == 0
    assert reader.gaps[GapKind.NO_PERMISSION] == 4


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
    assert {gap.kind for gap in gone.gaps.values()} == {GapKind.UNPLUGGED}
    assert gone.id == "GPU-00000000-0000-0000-0000-000000000002"
    assert HEALTHY.items() <= reader.read(3, ALL).values.items()


def test_nvml_names_are_forgotten_when_the_driver_counts_anew(
    reader: BoundedReader, driver: FakeDriver, clock: Clock
) -> None:
    """With a GPU less the others move up: the last place has no GPU, and must not name one."""
    reader.open()
    assert reader.read(7, (Field.POWER,)).id.endswith("7")
    assert reader.child_pid is not None
    os.kill(reader.child_pid, 9)
    driver.play("gpus 7")
    reader.read(0, (Field.POWER,))
    clock.now_ns += 61_000_000_000
    gone = reader.read(7, (Field.POWER,))
    assert (gone.id, gone.values) == ("index-7", {})


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
    assert none.gaps[Field.NVLINKS_UP].kind is GapKind.UNSUPPORTED


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
    assert told.gaps[Field.NVLINK_RX].kind is GapKind.UNSUPPORTED
    assert told.values[Field.PCIE_REPLAYS] == 6
    assert lost.gaps[Field.NVLINK_TX].kind is GapKind.UNPLUGGED


def test_nvml_xid_events_are_counted_for_their_gpu(
    reader: BoundedReader, driver: FakeDriver
) -> None:
    reader.open()
    driver.play("* xid value 5 79 3")
    other, hit = reader.read(0, ALL).values, reader.read(5, ALL).values
    assert (other[Field.XID_EVENTS], hit[Field.XID_EVENTS], hit[Field.XID_LAST]) == (0, 3, 79)
    assert reader.read(5, ALL).values[Field.XID_EVENTS] == 3


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
    assert told[0].name == Path("/proc/self/comm").read_text().strip()
    assert isinstance(untold[0].memory_bytes, Gap)
    assert isinstance(untold[0].sm_percent, Gap)


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
    assert reading.gaps[Field.UTILISATION].kind is GapKind.UNSUPPORTED
    assert reader.read(1, ALL, processes=True).partitions == ()


def test_nvml_mig_instances_tell_their_share_between_two_looks(
    driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_NVML_GPM", str(tmp_path / "held"))
    mig = ("0 nvmlDeviceGetMigMode value 1 1", "0 mig_instances value 3")
    driver.play(*mig, "101 gpm value 73", "102 gpm error 3")
    reader = BoundedReader(driver.reader, deadline_s=20)
    try:
        reader.open()
        looks = [reader.read(0, (), processes=True).partitions for _ in range(3)]
        shares = [[p.sm_percent for p in look] for look in looks if isinstance(look, tuple)]
        kinds = {one.kind for one in shares[0] if isinstance(one, Gap)}
        assert kinds == {GapKind.NOT_YET}
        assert shares[1][:2] == shares[2][:2] == [40, 73]
        assert isinstance(shares[1][2], Gap)
        driver.play(*mig, "0 nvmlGpmQueryDeviceSupport value 0")  # as before Hopper
        before_hopper = reader.read(0, (), processes=True).partitions
        assert isinstance(before_hopper, tuple)
        assert before_hopper[0].memory_used_bytes == 8 << 30
        assert {p.sm_percent for p in before_hopper} == {Gap(GapKind.UNSUPPORTED, "Not Supported")}
        assert (tmp_path / "held").read_text() == "0"
    finally:
        reader.close()


def test_nvml_hanging_call_costs_the_child_and_that_gpu_a_minute(
    driver: FakeDriver, clock: Clock
) -> None:
    driver.play("1 nvmlDeviceGetPowerUsage hang")
    reader = BoundedReader(driver.reader, deadline_s=3, boottime_ns=clock)
    try:
        reader.open()
        reader.read(1, (Field.TEMPERATURE,))
        first = reader.child_pid
        hung = reader.read(1, ALL)
        assert {gap.kind for gap in hung.gaps.values()} == {GapKind.TIMED_OUT}
        assert hung.id.endswith("1")
        assert (reader.killed, reader.child_pid) == (1, None)
        assert reader.read(0, ALL).values[Field.POWER] == 300_000
        assert reader.child_pid not in {None, first}
        driver.play()
        clock.now_ns += 59_000_000_000
        assert not reader.read(1, ALL).values  # still left alone
        clock.now_ns += 2_000_000_000
        assert reader.read(1, ALL).values[Field.POWER] == 300_000
        assert reader.killed == 1
    finally:
        reader.close()


def test_nvml_sweep_of_eight_gpus_is_one_question(reader: BoundedReader) -> None:
    source = DevicesSource([reader])
    source.start()
    assert reader._child is not None
    asked = _Overheard(reader._child.connection)
    reader._child.connection = asked  # type: ignore[assignment]
    for at_s in (1, 2):
        list(source.drain(at_s * 1_000_000_000))
        sweep = source.latest(at_s * 1_000_000_000)
        assert sweep is not None
        assert [one.values[Field.POWER] for one in sweep.devices] == [300_000] * 8
        assert [one.index for one in sweep.devices] == list(range(8))
    assert [indices for indices, *_ in asked.questions] == [tuple(range(8))] * 2


def test_nvml_gpu_that_hangs_in_a_sweep_costs_its_own_look_alone(
    driver: FakeDriver, clock: Clock
) -> None:
    reader = BoundedReader(driver.reader, deadline_s=3, boottime_ns=clock)
    try:
        reader.open()
        driver.play("2 nvmlDeviceGetPowerUsage hang")
        reader.ask(range(8), (Field.POWER,))
        looks = [reader.read(index, (Field.POWER,)) for index in range(8)]
        assert [one.index for one in looks if not one.values] == [2]
        assert [one.id[-1] for one in looks if one.values] == list("0134567")
        assert reader.killed == 1
        reader.ask(range(8), (Field.POWER,))
        again = [reader.read(index, (Field.POWER,)) for index in range(8)]
        assert [one.index for one in again if not one.values] == [2]
        assert reader.killed == 1, "who is left alone is not asked for"
    finally:
        reader.close()


def test_nvml_answers_that_nobody_took_are_nobody_elses(reader: BoundedReader) -> None:
    reader.open()
    reader.ask(range(8), (Field.POWER,))
    assert reader.read(0, (Field.POWER,)).id[-1] == "0"
    assert reader.read(5, (Field.POWER,)).id[-1] == "5"
    reader.ask(range(8), (Field.POWER,))
    assert set(reader.read(0, (Field.TEMPERATURE,)).fields) == {Field.TEMPERATURE}
    reader.ask((3, 4), (Field.POWER,))
    assert [reader.read(index, (Field.POWER,)).id[-1] for index in (3, 4)] == ["3", "4"]


def test_nvml_hanging_start_is_a_refusal_not_a_wait(driver: FakeDriver) -> None:
    driver.play("* nvmlInitWithFlags hang")
    reader = BoundedReader(driver.reader, start_s=0.3)
    with pytest.raises(DevicesUnavailable, match="expected an answer of the driver"):
        reader.open()
    assert reader.child_pid is None


def test_nvml_driver_that_starts_slowly_is_waited_for_without_holding_the_agent(
    driver: FakeDriver, clock: Clock
) -> None:
    reader = BoundedReader(driver.reader, deadline_s=0.2, start_s=20, boottime_ns=clock)
    try:
        driver.play("* nvmlInitWithFlags hang")
        first = reader.read(0, ALL)
        pid = reader.child_pid
        assert {gap.reason for gap in first.gaps.values()} == {"the driver is starting"}
        assert (reader.read(0, ALL).values, reader.child_pid, reader.killed) == ({}, pid, 0)
        clock.now_ns += 21_000_000_000
        reader.read(0, ALL)
        assert (reader.child_pid, reader.killed) == (None, 1)
    finally:
        reader.close()


def test_nvml_missing_driver_is_named(driver: FakeDriver) -> None:
    driver.play("* nvmlInitWithFlags error 9")
    reader = BoundedReader(driver.reader, deadline_s=20)
    with pytest.raises(DevicesUnavailable, match="NVML: Driver Not Loaded"):
        reader.open()


def test_nvml_child_that_dies_is_a_gap_and_is_replaced(
    driver: FakeDriver, clock: Clock, reader: BoundedReader
) -> None:
    reader.open()
    assert reader.child_pid is not None
    os.kill(reader.child_pid, 9)
    dead = reader.read(0, ALL)
    assert {gap.kind for gap in dead.gaps.values()} == {GapKind.FAILED}
    assert reader.read(1, ALL).values[Field.POWER] == 300_000
    clock.now_ns += 61_000_000_000
    assert reader.read(0, ALL).values[Field.POWER] == 300_000


def test_nvml_child_keeps_no_file_of_the_agent_open(reader: BoundedReader, tmp_path: Path) -> None:
    with (tmp_path / "ledger").open("wb") as kept:
        reader.open()
        files = {str(fd.readlink()) for fd in Path(f"/proc/{reader.child_pid}/fd").iterdir()}
        assert kept.name not in files


@pytest.mark.root
def test_nvml_child_works_after_the_privileges_were_dropped(driver: FakeDriver) -> None:
    """The drop is made in a thread's own process: uid 65534, which cannot read root's folders."""
    driver.library.parent.chmod(0o755)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            harden()
            reader = BoundedReader(driver.reader, Nursery(), deadline_s=20)
            reader.open()
            code = 0 if reader.read(0, ALL).values[Field.POWER] == 300_000 else 2
            child = Path(f"/proc/{reader.child_pid}")
            reader.close()  # the nursery lives on: only a kill ends the child
            end = time.monotonic() + 10
            while child.exists() and time.monotonic() < end:
                time.sleep(0.01)
            code = code or (3 if child.exists() else 0)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_nvml_reads_from_a_threaded_process(reader: BoundedReader) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        reader.open()
        assert reader.read(0, ALL).values[Field.POWER] == 300_000
    finally:
        stop.set()
        thread.join()
