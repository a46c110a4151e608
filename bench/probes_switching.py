"""What attaching and detaching take, and for how long they hold up a process that only computes."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Final

import numpy as np

from bench.probes_agent import file_found
from bench.probes_target import Slices, Target, copy_library
from collectors.boot_clock import boottime_ns
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.programs import GpuPrograms
from collectors.records.gpu_calls import FileGroup

_RATE: Final = 20_000.0
_HELD_S: Final = 0.15
_START_S: Final = 0.5

Interval = tuple[int, int]


def stalls(folder: Path, cycles: int) -> dict[str, float]:
    """Attach to a file of a running process and detach again, many times.

    Returns  milliseconds per cycle: what the calls took, and for how long they held up the process
    """
    library, bare = (copy_library(folder, "push", name).resolve() for name in ("switched", "bare"))
    table = ProbeTable.load()
    programs = GpuPrograms(table)
    plan = file_found(library, table).plan
    links = len(plan.attachments)
    attaching: list[Interval] = []
    detaching: list[Interval] = []
    try:
        with Target(folder, [library, bare]) as target:
            seconds = 2 * _START_S + cycles * 3 * _HELD_S
            target.begin_pace(0, 1, _RATE, seconds, (0, 0))
            time.sleep(_START_S)
            for _ in range(cycles):
                begun_ns = boottime_ns()
                programs.attach(1, str(library), plan.attachments)
                attaching.append((begun_ns, boottime_ns()))
                time.sleep(_HELD_S)
                begun_ns = boottime_ns()
                programs.detach_all([FileGroup(1, one.group) for one in plan.attachments])
                detaching.append((begun_ns, boottime_ns()))
                time.sleep(_HELD_S)
            slices = target.end_pace()
    finally:
        programs.close()
    return {
        "links": links,
        "attach_ms": _took_ms(attaching),
        "detach_ms": _took_ms(detaching),
        "attach_stall_ms": held_up_ms(slices, attaching),
        "detach_stall_ms": held_up_ms(slices, detaching),
    }


def held_up_ms(slices: list[Slices], intervals: list[Interval]) -> float:
    """Give for how long a process was held up in an interval, by its slices of bare calls.

    What such slices took in excess, by the share of the intervals that they cover.
    """
    bare = np.array([(one.bare_begin_ns, one.bare_end_ns, one.bare_own_ns) for one in slices])
    touched = np.zeros(len(bare), bool)
    covered = 0
    for begin_ns, end_ns in intervals:
        inside = np.minimum(bare[:, 1], end_ns) - np.maximum(bare[:, 0], begin_ns)
        touched |= inside > 0
        covered += int(np.clip(inside, 0, None).sum())
    if not covered or touched.all():
        return 0.0
    excess = float((bare[touched, 2] - np.median(bare[~touched, 2])).sum())
    whole = sum(end_ns - begin_ns for begin_ns, end_ns in intervals)
    return max(excess, 0.0) * whole / covered / len(intervals) / 1e6


def _took_ms(intervals: list[Interval]) -> float:
    return statistics.median(end - begin for begin, end in intervals) / 1e6
