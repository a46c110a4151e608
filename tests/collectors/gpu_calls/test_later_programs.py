"""Programs that come with the first GPU library: no map before, everything counted after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.gpu_calls.loaders import LaterPrograms
from collectors.gpu_calls.readout import ProbeDrain
from collectors.interface import SourceUnavailable
from collectors.records.gpu_calls import FileGroup, GpuCalls, ProbeGroup
from tests.probe_source_kit import OURS, Watched, own_caller, watching
from tests.probes_kit import PUSH, STUBS, Stubs, begin, compile_stub, waiting
from tests.wait_kit import until

PLACE = FileGroup(1, ProbeGroup.LAUNCH)
OUR_LIBRARY_ALONE = f"""
name = "cudart"
files = ["lib{OURS}.so*"]

[[row]]
id = "launch"
kind = "launch"
symbols = ["cudaLaunchKernel"]
arguments = {{ object = 0 }}
"""
"""Other tests may run beside this one: their libraries are not of this table."""


class HalfAttached:
    """Programs that came at 30 and were attached at 40 of each span."""

    def __init__(self) -> None:
        self.begun_ns = 30
        self.closed = 0

    attached = frozenset({PLACE})

    def attach(self, *_: object) -> None:
        return

    detach_all = attach

    def drain(self, now_ns: int) -> ProbeDrain:
        begun_ns, self.begun_ns = self.begun_ns, now_ns
        return ProbeDrain(begun_ns, now_ns - begun_ns, duty={PLACE: 0.5})

    def close(self) -> None:
        self.closed += 1


def test_later_programs_drain_spans_that_touch() -> None:
    later = LaterPrograms(HalfAttached, 0, tries=True)
    first = later.drain(20)
    later.attach(1, "library", [])
    second, third = later.drain(50), later.drain(60)
    assert [(one.begun_ns, one.span_ns) for one in (first, second, third)] == [
        (0, 20), (20, 30), (50, 10),
    ]  # fmt: skip
    assert not first.duty
    assert second.duty[PLACE] == pytest.approx(0.5 * 20 / 30)
    assert third.duty[PLACE] == 0.5


def test_later_programs_are_tried_at_the_start_and_let_go() -> None:
    made: list[HalfAttached] = []

    def load() -> HalfAttached:
        made.append(HalfAttached())
        return made[-1]

    later = LaterPrograms(load, 0, tries=True)
    later.try_out()
    assert [one.closed for one in made] == [1]
    assert later._programs is None
    assert not later.attached
    later.attach(1, "library", [])
    later.try_out()
    later.attach(2, "another", [])
    assert [one.closed for one in made] == [1, 0]


def test_later_programs_that_cannot_be_loaded_fail_once_for_all() -> None:
    asked: list[int] = []

    def refuse() -> HalfAttached:
        asked.append(1)
        raise SourceUnavailable("no memory for maps")

    later = LaterPrograms(refuse, 0, tries=False)
    later.try_out()
    for _ in range(2):
        with pytest.raises(SourceUnavailable, match="no memory"):
            later.attach(1, "library", [])
    assert len(asked) == 1
    assert later.failure == "no memory for maps"
    assert later.drain(9).span_ns == 9  # the thread that switches goes on
    with pytest.raises(SourceUnavailable, match="no memory"):
        LaterPrograms(refuse, 0, tries=True).try_out()


def maps_held() -> set[str]:
    """Give the numbers of the BPF maps that this process has."""
    infos = [path.read_text() for path in Path("/proc/self/fdinfo").iterdir() if path.exists()]
    return {line for info in infos for line in info.splitlines() if line.startswith("map_id:")}


@pytest.fixture
def first_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A caller of a library that no other process has; the only one that is looked for."""
    rows = tmp_path / "ours.toml"
    rows.write_text(OUR_LIBRARY_ALONE)
    monkeypatch.setattr("collectors.gpu_calls.gpu_probes.shipped_tables", lambda: (rows,))
    library = tmp_path / f"lib{OURS}.so.12"
    compile_stub(*PUSH, "-shared", "-fPIC", STUBS / "cudart.c", "-o", library)
    return own_caller(Stubs(tmp_path), tmp_path, library.name)


@pytest.fixture
def watched(first_library: Path) -> Iterator[Watched]:
    with watching() as watched:
        yield watched


def seen(watched: Watched, pid: int) -> int:
    """Launches of a process."""
    calls = [one for one in watched.of(GpuCalls) if isinstance(one, GpuCalls)]
    rows = [row for one in calls for row in one.kernels if row.process.pid == pid]
    return sum(row.launches.seen for row in rows)


@pytest.mark.root
@pytest.mark.kernel
def test_source_has_no_map_before_the_first_library_and_counts_exactly_after(
    first_library: Path,
) -> None:
    before = maps_held()
    with watching() as watched:
        watched.drain()
        assert maps_held() == before
        assert watched.source.running.programs._programs is None
        with watched.waiting(first_library, "threads", 3, 503) as child:
            begin(child)
            watched.drain()
        assert len(maps_held() - before) > 10
        assert seen(watched, child.pid) == 3 * 503
        with watched.waiting(first_library, "threads", 2, 401) as second:
            begin(second)
            watched.drain()
        assert seen(watched, second.pid) == 2 * 401
    assert maps_held() == before


@pytest.mark.root
@pytest.mark.kernel
def test_source_that_cannot_load_later_fails_with_the_reason(
    first_library: Path, watched: Watched
) -> None:
    running = watched.source.running

    def refuse() -> HalfAttached:
        raise SourceUnavailable("cannot load the BPF programs: no memory")

    running.programs._load = refuse
    watched.drain()
    with waiting(first_library, "threads", 1, 1):
        until(lambda: running.programs.failure is not None)
        with pytest.raises(SourceUnavailable, match=r"GPU calls: cannot load.*no memory; without"):
            watched.drain()
    assert running.switching.alive
