"""Records of made-up seconds, and frames of every shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from collectors.devices.device_port import DeviceReading, Field, ProcessUse
from collectors.ebpf import ebpf_tables as layout
from collectors.records.activity import (
    HostTable,
    HostTicks,
    RhythmKind,
    RhythmMarks,
    StepMarks,
    StepSource,
)
from collectors.records.basics import ProcessKey
from collectors.records.gpu_calls import (
    CopyCalls,
    CountedCalls,
    Direction,
    GpuCalls,
    ProbeGroup,
    ProcessCalls,
    ProcessLabels,
    WaitCalls,
)
from diagnosis.frames.frame import FINE_BINS, HostSample, Steps, Subject
from diagnosis.frames.framer import Framer
from diagnosis.frames.host_signals import Places, ProcessPlace
from diagnosis.frames.signals import FINE, SIGNALS, Scope, of_scope

MS: Final = 1_000_000
S: Final = 1_000_000_000
T0: Final = 5_000 * S

Rows = Mapping[str, Mapping[str, int]]


def table(name: str, columns: tuple[str, ...], rows: Rows, at_ns: int = T0) -> HostTable:
    """A second's table; columns that are not named are zero."""
    values = [[row.get(column, 0) for column in columns] for row in rows.values()]
    array = np.array(values, np.int64).reshape(len(rows), len(columns))
    return HostTable(name, tuple(rows), columns, array, at_ns, S)


def cpu(*cpus: Mapping[str, int], at_ns: int = T0) -> HostTable:
    rows = {f"cpu{place}": row for place, row in enumerate(cpus)}
    return table("cpu", layout.TOTALS, rows, at_ns)


def cgroup(rows: Rows, at_ns: int = T0) -> HostTable:
    return table("cgroup", layout.CGROUP_COLUMNS, rows, at_ns)


def ticks(times_ns: Sequence[int], **totals: Sequence[int]) -> HostTicks:
    """Snapshots of some totals; the others stay at zero."""
    values = np.zeros((len(times_ns), len(layout.TOTALS)), np.uint64)
    for name, column in totals.items():
        values[:, layout.TOTALS.index(name)] = column
    return HostTicks(layout.TOTALS, np.array(times_ns, np.int64), values, 0, 0)


def marks(
    pid: int, ended_ns: Sequence[int], cgroup: str = "/job", open_ns: int | None = None,
    source: StepSource = StepSource.UPROBE, probe: str = "step",
) -> StepMarks:  # fmt: skip
    """Steps of 10 ms of a process."""
    ends = np.array(ended_ns, np.int64)
    lasted = np.full(len(ends), 10_000_000, np.int64)
    return StepMarks(pid, pid * S, cgroup, "train", probe, source, ends, lasted, 0, open_ns)


def sends(pid: int, at_ns: Sequence[int], cgroup: str) -> RhythmMarks:
    """A process that sends at these times, from one thread over one socket."""
    times = np.array(at_ns, np.int64)
    ones = np.ones(len(times), np.int64)
    kinds = np.full(len(times), RhythmKind.SEND, np.uint8)
    beyond = (0,) * len(RhythmKind)
    return RhythmMarks(
        pid, pid * S, cgroup, "loop", times, kinds, pid * ones, ones, ones, 0 * ones, beyond
    )


def reading(
    fields: Mapping[Field, int], at_ns: int, index: int = 0, users: Mapping[int, int] | None = None
) -> DeviceReading:
    """A look at a GPU; users: SM share by pid."""
    processes = None
    if users is not None:
        processes = tuple(ProcessUse(pid, 0, percent) for pid, percent in users.items())
    return DeviceReading(index, f"GPU-{index}", "model", at_ns, at_ns, dict(fields), processes)


def gpu_calls(pid: int = 7, share: float = 1.0) -> GpuCalls:
    copies = (CopyCalls(Direction.HOST_TO_DEVICE, CountedCalls.exactly(4), 4_000, ()),)
    one = ProcessCalls(
        ProcessKey(pid, 0), ProcessLabels("python3"), CountedCalls(50, 100.0, 0.0, share),
        WaitCalls(CountedCalls.exactly(3), 250 * MS), copies,
    )  # fmt: skip
    return GpuCalls(T0, S, (one,), (), {ProbeGroup.COPY: share})


def framer(places: Mapping[int, str] | None = None, **settings: object) -> Framer:
    """A framer whose processes live in these cgroups, and are alive; its first base is T0."""
    known = {pid: ProcessPlace(path, f"p{pid}") for pid, path in (places or {}).items()}
    made = Framer(places=Places(known.get), alive=lambda _pid: True, **settings)  # type: ignore[arg-type]
    assert made.frame(T0) is None
    return made


def frame_of(made: Framer, second: int = 1) -> HostSample:
    """Give the frame that ends so many seconds after T0."""
    found = made.frame(T0 + second * S)
    assert found is not None
    return found


_FINITE: Final = st.floats(0, 2.0**40, width=32) | st.sampled_from([0.0, 0.0, 1.0])
_PATHS: Final = st.sampled_from(["/", "/job", "/train/rank0", "/wörk/x y", "/job#7"])


def _signals(scope: Scope) -> st.SearchStrategy[dict[str, float]]:
    return st.dictionaries(st.sampled_from(of_scope(SIGNALS, scope)), _FINITE, max_size=8)


@st.composite
def steps(draw: st.DrawFn, end_ns: int, source: StepSource | None = None) -> Steps:
    ages = sorted(draw(st.lists(st.integers(0, S - 1), max_size=12)), reverse=True)
    lasted = draw(st.lists(st.integers(1, 3_600 * S), min_size=len(ages), max_size=len(ages)))
    return Steps(
        source or draw(st.sampled_from([StepSource.UPROBE, StepSource.LAUNCHES])),
        np.array([end_ns - age for age in ages], np.int64),
        np.array(lasted, np.int64),
        draw(st.integers(0, 9)),
        draw(st.none() | st.integers(0, 3_600 * S)),
    )


@st.composite
def subjects(draw: st.DrawFn, end_ns: int) -> Subject:
    return Subject(
        draw(_PATHS),
        draw(st.sampled_from(["", "python3"])),
        draw(_signals(Scope.SUBJECT)),
        draw(st.none() | steps(end_ns)),
        draw(st.none() | steps(end_ns, StepSource.RHYTHM)),
        draw(st.sampled_from([(), (0,), (0, 3)])),
    )


@st.composite
def frames(draw: st.DrawFn) -> list[HostSample]:
    made: list[HostSample] = []
    end_ns = draw(st.integers(0, 10_000 * S))
    for _ in range(draw(st.integers(0, 5))):
        span_ns = draw(st.integers(S // 2, 3 * S))
        end_ns += span_ns
        fine = draw(nps.arrays(np.float32, (len(FINE), FINE_BINS), elements=_FINITE, fill=_FINITE))
        fine[draw(st.integers(0, len(FINE) - 1))] = np.nan
        made.append(
            HostSample(
                end_ns,
                span_ns,
                draw(_signals(Scope.HOST)),
                fine,
                draw(st.dictionaries(_PATHS, subjects(end_ns), max_size=3)),
                draw(st.dictionaries(_PATHS, _signals(Scope.CGROUP), max_size=3)),
                draw(st.dictionaries(st.integers(0, 7), _signals(Scope.GPU), max_size=2)),
            )
        )
    return made
