"""The devices source: what it fills, what it claims, what it leaves out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from collectors.boot_clock import boottime_ns
from collectors.devices.bounded import BoundedReader
from collectors.devices.device_port import (
    QUICK,
    REGULAR,
    SLOW,
    DeviceReading,
    DevicesUnavailable,
    Field,
    Inventory,
    Measured,
)
from collectors.devices.devices_source import DevicesSource, GpuUsers
from collectors.gpu_calls.activity_records import GpuPlaces
from collectors.interface import SourceUnavailable
from collectors.records.activity import GpuCoverage, Observation
from collectors.records.basics import FailureKind, ProcessKey, ReadFailure
from diagnosis.frames.gpu_signals import FRESH_NS, GpuSignals
from edge_agent.windows.window_accumulator import HostClock, WindowAccumulator
from tests.fake_nvml_kit import FakeDriver
from tests.window_kit import CATALOGUE, START, cells, task_of

S = 1_000_000_000


class PlayedDevices:
    """A reader that gives what it is told."""

    def __init__(self, *fields: dict[Field, Measured], cheap: bool = False) -> None:
        self.fields = list(fields)
        self.cheap = cheap
        self.now_ns = 0
        self.closed = False
        self.asked: list[frozenset[Field]] = []
        self.watched: list[tuple[int, int]] = []

    def open(self) -> Inventory:
        return Inventory(len(self.fields), "1", throughput_is_cheap=self.cheap)

    def ask(
        self, indices: Iterable[int], fields: Collection[Field], *, processes: bool = False
    ) -> None:
        return

    def read(
        self, index: int, fields: Collection[Field], *, processes: bool = False
    ) -> DeviceReading:
        self.asked.append(frozenset(fields))
        if set(fields) >= SLOW:
            self.watched.append((self.now_ns // S, index))
        played = self.fields[index]
        return DeviceReading(index, f"GPU-{index}", "H100", self.now_ns, self.now_ns, played)

    def close(self) -> None:
        self.closed = True


class AbsentDevices(PlayedDevices):
    def open(self) -> Inventory:
        raise DevicesUnavailable("no such library")


FULL: dict[Field, Measured] = {
    Field.UTILISATION: 63,
    Field.MEMORY_USED: 20,
    Field.MEMORY_TOTAL: 80,
    Field.POWER: 412_900,
    Field.TEMPERATURE: 58,
}


def _drain(
    source: DevicesSource, played: PlayedDevices, at_s: int
) -> list[Observation | GpuCoverage]:
    played.now_ns = at_s * S
    return list(source.drain(at_s * S))


def _started(played: PlayedDevices) -> DevicesSource:
    source = DevicesSource([played])
    source.start()
    return source


def test_devices_source_samples_four_sections_every_five_seconds() -> None:
    played = PlayedDevices(FULL)
    source = _started(played)
    samples = [_drain(source, played, at_s) for at_s in range(100, 111)]
    assert [len(one) for one in samples] == [4, 0, 0, 0, 0, 4, 0, 0, 0, 0, 4]
    regular, quick = REGULAR | SLOW, QUICK | SLOW
    assert played.asked == [regular, *[quick] * 4, regular, *[quick] * 4, regular]
    assert samples[0] == [
        Observation("gpu_utilisation", "", 63, 100 * S),
        Observation("gpu_memory", "", 25, 100 * S),
        Observation("gpu_power", "", 412, 100 * S),
        Observation("gpu_temperature", "", 58, 100 * S),
    ]


@pytest.mark.parametrize(("gpus", "a_look"), [(1, 1), (5, 1), (8, 2), (16, 3)])
def test_devices_source_watches_few_links_at_a_time_and_all_in_turns(
    gpus: int, a_look: int
) -> None:
    played = PlayedDevices(*[FULL] * gpus)
    source = _started(played)
    for at_s in range(100, 130):
        _drain(source, played, at_s)
    looks = Counter(at_s for at_s, _ in played.watched)
    assert set(looks.values()) == {a_look}
    for index in range(gpus):
        seen = [at_s for at_s, watched in played.watched if watched == index]
        assert max(later - earlier for earlier, later in pairwise(seen)) * S <= FRESH_NS


def test_devices_source_reads_throughput_that_costs_nothing_in_each_look() -> None:
    played = PlayedDevices(*[FULL] * 8, cheap=True)
    source = _started(played)
    for at_s in range(100, 103):
        _drain(source, played, at_s)
    assert played.watched == [(at_s, index) for at_s in range(100, 103) for index in range(8)]


def test_devices_source_gap_is_a_missing_sample_and_a_count() -> None:
    gap = ReadFailure(FailureKind.FAILED, "an error")
    played = PlayedDevices({**FULL, Field.POWER: gap}, dict.fromkeys(FULL, gap))
    source = _started(played)
    records = _drain(source, played, 1)
    assert [r.section for r in records if isinstance(r, Observation)] == [
        "gpu_utilisation", "gpu_memory", "gpu_temperature",
    ]  # fmt: skip
    assert source.gaps[Field.POWER, FailureKind.FAILED] == 2
    assert source.gaps[Field.UTILISATION, FailureKind.FAILED] == 1


def test_devices_source_claims_idle_time_only() -> None:
    played = PlayedDevices({Field.UTILISATION: 0}, {Field.UTILISATION: 40})
    source = _started(played)
    assert not [r for r in _drain(source, played, 1) if isinstance(r, GpuCoverage)]
    assert _drain(source, played, 2) == [GpuCoverage("devices", 0, 1 * S, S)]
    played.fields[0] = {Field.UTILISATION: 3}
    assert _drain(source, played, 3) == []
    played.fields[0] = {Field.UTILISATION: 0}
    assert _drain(source, played, 4) == []  # idle now; before it, nobody knows
    assert _drain(source, played, 5) == [GpuCoverage("devices", 0, 4 * S, S)]


@pytest.mark.parametrize("kind", [FailureKind.TIMED_OUT, FailureKind.FAILED])
def test_devices_source_claims_nothing_across_a_gap(kind: FailureKind) -> None:
    between = ReadFailure(kind, "late")
    played = PlayedDevices({Field.UTILISATION: 0})
    source = _started(played)
    _drain(source, played, 1)
    played.fields[0] = {Field.UTILISATION: between}
    assert _drain(source, played, 2) == []
    played.fields[0] = {Field.UTILISATION: 0}
    assert _drain(source, played, 3) == []


def test_devices_source_claims_nothing_across_a_pause() -> None:
    played = PlayedDevices({Field.UTILISATION: 0})
    source = _started(played)
    _drain(source, played, 1)
    assert not [r for r in _drain(source, played, 60) if isinstance(r, GpuCoverage)]


def test_devices_source_says_what_is_missing_in_one_line() -> None:
    source = DevicesSource([AbsentDevices(FULL), PlayedDevices()])
    reason = source.probe()
    assert reason == "devices: no such library; a driver without devices"
    with pytest.raises(SourceUnavailable, match="not started"):
        source.drain(0)


def test_devices_source_last_look_is_never_served_stale() -> None:
    played = PlayedDevices(FULL)
    source = _started(played)
    _drain(source, played, 1)
    sweep = source.latest(11 * S)
    assert sweep is not None
    assert sweep.devices[0].values[Field.POWER] == 412_900
    assert source.latest(12 * S) is None
    source.stop()
    assert played.closed
    assert source.latest(1 * S) is None


def test_devices_source_fills_a_window_and_leaves_busy_time_unmeasured() -> None:
    idle: dict[Field, Measured] = {**FULL, Field.UTILISATION: 0}
    played = PlayedDevices(idle, FULL)
    source = _started(played)
    names = ("kernel_mix", "gpu_utilisation", "gpu_memory", "gpu_power", "gpu_temperature")
    task = task_of(names)
    windows = WindowAccumulator(
        CATALOGUE, task, ["H100", "H100"], clock=HostClock(START * S), first_window=START
    )
    for at_s in range(61):
        for record in _drain(source, played, at_s):
            windows.add(record)
    row = windows.close(START)
    assert cells(task, row, "gpu_utilisation") == {"0..5 percent": 12, "60..65 percent": 12}
    assert cells(task, row, "gpu_memory") == {"25..30 percent": 24}
    assert cells(task, row, "gpu_power") == {"400..450 watt": 24}
    assert cells(task, row, "gpu_temperature") == {"55..60 celsius": 24}
    assert cells(task, row, "kernel_mix") == {"idle": 60_000, "unmeasured": 60_000}


@pytest.fixture
def eight_gpus(tmp_path: Path) -> Iterator[tuple[FakeDriver, DevicesSource]]:
    driver = FakeDriver(tmp_path)
    source = DevicesSource([BoundedReader(driver.reader, deadline_s=20)])
    source.start()
    yield driver, source
    source.stop()


def test_devices_source_fills_from_the_driver(
    eight_gpus: tuple[FakeDriver, DevicesSource],
) -> None:
    driver, source = eight_gpus
    driver.play("3 nvmlDeviceGetUtilizationRates value 91 20", "4 * error 15")
    records = list(source.drain(S))
    by_section = [r.section for r in records if isinstance(r, Observation)]
    assert {name: by_section.count(name) for name in by_section} == {
        "gpu_utilisation": 7, "gpu_memory": 7, "gpu_power": 7, "gpu_temperature": 7,
    }  # fmt: skip
    assert 91 in [r.value for r in records if isinstance(r, Observation)]
    assert source.gaps[Field.POWER, FailureKind.UNPLUGGED] == 1


@pytest.mark.parametrize(
    ("support", "sent", "received"), [(1, 3 << 20, 5 << 20), (0, 1_000_000, 2_000_000)]
)
def test_devices_source_gives_the_rules_their_throughput_live(
    tmp_path: Path, support: int, sent: float, received: float
) -> None:
    """From the driver through its child and the source to the signals that diagnosis reads."""
    driver = FakeDriver(tmp_path)
    driver.play("gpus 2", f"* nvmlGpmQueryDeviceSupport value {support}")
    source = DevicesSource([BoundedReader(driver.reader, deadline_s=20)])
    gpus, now_ns = GpuSignals(), boottime_ns()
    source.start()
    try:
        for second in range(2):
            list(source.drain(now_ns + second * S))
            sweep = source.latest(now_ns + second * S)
            assert sweep is not None
            gpus.look(sweep.devices)
    finally:
        source.stop()
    found = gpus.signals(boottime_ns())
    assert [one["pcie_tx_bytes_per_s"] for one in found.values()] == [sent] * 2
    assert [one["pcie_rx_bytes_per_s"] for one in found.values()] == [received] * 2


def test_devices_source_without_a_driver_is_absent_in_one_line(
    eight_gpus: tuple[FakeDriver, DevicesSource],
) -> None:
    driver, _ = eight_gpus
    driver.play("* nvmlInitWithFlags error 12")
    source = DevicesSource([BoundedReader(driver.reader, deadline_s=20)])
    assert source.probe() == "devices: NVML: NVML Shared Library Not Found"


def test_devices_source_tells_the_fault_of_each_new_xid_once() -> None:
    played = PlayedDevices({**FULL, Field.XID_EVENTS: 0, Field.XID_LAST: 0})
    source = _started(played)

    def faults(at_s: int, events: Measured, last: int) -> list[str]:
        played.fields[0] = {**FULL, Field.XID_EVENTS: events, Field.XID_LAST: last}
        records = _drain(source, played, at_s)
        return [
            one.cell
            for one in records
            if isinstance(one, Observation) and one.section == "hardware_faults"
        ]

    assert faults(1, 0, 0) == []
    assert faults(2, 1, 79) == ["faulty_gpu"]
    assert faults(3, 1, 79) == []
    assert faults(4, ReadFailure(FailureKind.TIMED_OUT, "late"), 79) == []
    assert faults(5, 0, 0) == []  # a new child counts anew
    assert faults(6, 1, 119) == ["gpu_system_processor"]
    assert faults(7, 2, 13) == []  # an application's doing
    assert faults(8, 3, 48) == []  # where in the GPU, the log tells


def test_gpus_keep_their_place_when_one_before_them_is_gone() -> None:
    """What is left of the host's GPUs is measured as itself; of the missing one nothing is."""
    users = GpuUsers()
    idle: dict[Field, Measured] = {**FULL, Field.UTILISATION: 0}
    played = PlayedDevices(idle, idle)  # GPU-0 and GPU-1, of which the first is a stranger
    source = DevicesSource([played], users=users, bound=["GPU-9", " gpu-1"])
    source.start()
    assert [part.source for part in source.absent] == ["devices: gpu-9"]
    task = task_of(["kernel_mix"])
    windows = WindowAccumulator(
        CATALOGUE, task, ["H100", "H100"], clock=HostClock(START * S), first_window=START
    )
    for at_s in range(61):
        for record in _drain(source, played, at_s):
            windows.add(record)
    row = cells(task, windows.close(START), "kernel_mix")
    assert (row["idle"], row["unmeasured"]) == (60_000, 60_000)
    places = GpuPlaces(2, users)
    assert places.watched((), 61 * S) == (1,), "no launch is looked for on it, none is missed"
    assert places.of(ProcessKey(7, 0), 61 * S) == (1,)


def test_host_whose_driver_is_gone_measures_none_of_its_gpus() -> None:
    users = GpuUsers()
    source = DevicesSource([AbsentDevices()], users=users, bound=["GPU-0", "GPU-1"])
    assert source.probe() == "devices: no such library"
    assert GpuPlaces(2, users).watched((), S) == ()
