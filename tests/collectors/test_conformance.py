"""What every collector must do, whatever it measures: one suite, a row a collector.

A collector of your own adds a row to MADE.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from collectors.boot_clock import boottime_ns
from collectors.devices.device_port import Field
from collectors.devices.devices_source import DevicesSource, GpuUsers
from collectors.ebpf.ebpf_source import EbpfSource
from collectors.faults.faults_source import FaultsSource
from collectors.gpu_calls.activity_records import GpuPlaces
from collectors.gpu_calls.gpu_probes import GpuProbesSource, ProbesSection
from collectors.gpu_time.gpu_time_source import GpuTimeSection, GpuTimeSource
from collectors.host.host_source import HostSource
from collectors.host.pressure import PressureSource
from collectors.host.rdma import RdmaSource
from collectors.interface import Source, SourceUnavailable, TriesOut, guarded
from collectors.records.activity import GpuCoverage, HostTable, HostTicks, KernelActivity, Record
from collectors.records.gpu_calls import GpuCalls
from collectors.replay.replay_source import ReplaySource
from collectors.steps.steps_source import StepProbe, StepsSource
from kernels.families import FamilyRules
from tests.collectors.devices.test_devices_source import PlayedDevices
from tests.collectors.host.test_pressure_and_rdma import make_ports
from tests.collectors.replay.test_replay import kernel, write_trace
from tests.faults_kit import FakeHost
from tests.probe_source_kit import ONLY_OURS
from wire.catalogue import Catalogue

RECORDS = typing.get_args(Record)
SECOND_NS = 1_000_000_000
Made = Callable[[Path], Source]


def _faults(folder: Path) -> Source:
    host = FakeHost(folder)
    return FaultsSource(host.root, host.log, smart=lambda _: host.smart, start=lambda work: work())


def _rdma(folder: Path) -> Source:
    return RdmaSource(make_ports(folder))


def _devices(_folder: Path) -> Source:
    return DevicesSource([PlayedDevices({Field.UTILISATION: 50})])


def _replay(folder: Path) -> Source:
    trace = write_trace(folder / "t.json", [kernel(at, 10.0) for at in range(0, 500, 20)])
    return ReplaySource(trace, FamilyRules.load(), gpus=1)


def _probes(folder: Path) -> Source:
    settings = ProbesSection(leave_out=ONLY_OURS)
    return GpuProbesSource(
        settings, Catalogue.load(), GpuPlaces(1, GpuUsers()), folder / "names.sqlite"
    )


def _gpu_time(folder: Path) -> Source:
    return GpuTimeSource(GpuTimeSection(True, folder / "s.sock"), 1, GpuUsers())


IN_THE_KERNEL = (pytest.mark.root, pytest.mark.kernel)
MADE: dict[str, tuple[Made, tuple[pytest.MarkDecorator, ...]]] = {
    "host": (lambda _: HostSource(), ()),
    "pressure": (lambda _: PressureSource(), ()),
    "rdma": (_rdma, ()),
    "devices": (_devices, ()),
    "faults": (_faults, ()),
    "replay": (_replay, ()),
    "gpu_time": (_gpu_time, ()),
    "steps": (lambda _: StepsSource([StepProbe("/nowhere/libtrain.so", "step")]), IN_THE_KERNEL),
    "ebpf-libbpf": (lambda _: EbpfSource("libbpf"), IN_THE_KERNEL),
    "ebpf-bcc": (lambda _: EbpfSource("bcc"), (*IN_THE_KERNEL, pytest.mark.release)),
    "probes": (_probes, IN_THE_KERNEL),
}


@pytest.fixture(params=[pytest.param(made, id=n, marks=m) for n, (made, m) in MADE.items()])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    made: Source = request.param(tmp_path)
    if (reason := made.probe()) is not None:
        made.stop()
        pytest.skip(f"this host lacks it: {reason}")
    yield made
    made.stop()


def drained(source: Source, rounds: int = 2) -> list[Record]:
    """Give all records of some drains a second apart, the last of them now."""
    now_ns = boottime_ns()
    return [
        record
        for number in range(rounds)
        for record in guarded(source, now_ns - (rounds - 1 - number) * SECOND_NS)
    ]


def test_collector_has_a_name_fit_for_counters(source: Source) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*", source.name)


def test_collector_says_every_time_that_it_can_start_and_may_be_stopped_before(
    source: Source,
) -> None:
    source.stop()
    assert [source.probe(), source.probe()] == [None, None]


def test_collector_gives_the_past_alone_nothing_once_stopped_and_starts_again(
    source: Source,
) -> None:
    source.start()
    check(drained(source), boottime_ns())
    source.stop()
    source.stop()
    with suppress(SourceUnavailable):
        assert list(source.drain(boottime_ns())) == []
    source.start()
    check(drained(source), boottime_ns())


def in_the_kernel() -> set[str]:
    """Give the numbers of the maps, programs and links that this process has there."""
    infos = [path.read_text() for path in Path("/proc/self/fdinfo").iterdir() if path.exists()]
    lines = {line for info in infos for line in info.splitlines()}
    return {line for line in lines if line.startswith(("map_id:", "prog_id:", "link_id:"))}


def test_collector_that_is_tried_leaves_nothing_behind(source: Source, tmp_path: Path) -> None:
    if not isinstance(source, TriesOut):
        return
    before = in_the_kernel(), sorted(tmp_path.iterdir())
    source.try_out()
    assert (in_the_kernel(), sorted(tmp_path.iterdir())) == before


def check(found: list[Record], now_ns: int) -> None:
    """Records of the port's kinds, of spans that have ended."""
    for record in found:
        assert isinstance(record, RECORDS)
        if isinstance(record, HostTicks):
            assert (record.boottime_ns <= now_ns).all()
        elif isinstance(record, KernelActivity | GpuCoverage | HostTable | GpuCalls):
            assert 0 < record.boottime_ns <= record.boottime_ns + record.span_ns <= now_ns


def test_every_collector_of_the_agent_is_a_row() -> None:
    """Each room with a source of its own; the registry's names are those of MADE."""
    rooms = Path(__file__).resolve().parents[2] / "collectors"
    texts = (path.read_text(encoding="utf-8") for path in rooms.rglob("*.py"))
    classes = {
        name for text in texts for name in re.findall(r"^class (\w+Source)\b", text, re.MULTILINE)
    }
    used = Path(__file__).read_text(encoding="utf-8")
    made = set(re.findall(r"\b(\w+Source)\(", used))
    assert classes - {"Source", "StepSource", "UnavailableSource"} == made
