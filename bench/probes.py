"""What probing GPU calls costs, and whether everything is counted: make bench-probes, as root.

What one probed call costs is told by first instruction and loader. Every variant has a copy of the
library of its own, and all are probed at the same time: the process calls one after the other,
round by round, so that all see the same machine.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bench import probes_governed
from bench.parts import Measured, Part, Parts
from bench.probes_target import (
    BEHIND,
    Bpftrace,
    Target,
    build,
    copy_library,
    symbol_offset,
)
from bench.record import CACHE, Figure
from collectors.binaries.elf_file import EntryClass
from collectors.boot_clock import boottime_ns
from collectors.gpu_calls import programs
from collectors.gpu_calls.probe_plan import Attachment
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.readout import ProbeDrain
from collectors.records.gpu_calls import ProbeGroup

ROUNDS: Final = 31
CALLS: Final = 4_000
_BEHIND: Final = "_behind"
_LOADERS: Final = ("none", "libbpf", "bpftrace")
_ROW: Final = "cudart.launch"
_PROBED_NS: Final = 100.0
_ATTACH_S: Final = 30.0
_SECONDS: Final = {1_000: 60.0, 2_500: 60.0, 5_000: 60.0, 20_000: 90.0, 50_000: 120.0}
_BURST_RATE: Final = 20_000
_BURST_SECONDS: Final = 90.0
_THREADS: Final = (1, 4)
_OVERHEAD_GOAL, _ERROR_GOAL = 0.5, 5.0
_MOVED_GOAL_NS: Final = 1_000.0


class Variant(NamedTuple):
    """One library and who probes it.

    entry    first instruction of its function; with _behind: probed behind it, as plans do
    loader   libbpf, bpftrace, or none
    """

    entry: str
    loader: str

    @property
    def name(self) -> str:
        return f"{self.entry}_{self.loader}"

    @property
    def first(self) -> str:
        return self.entry.removesuffix(_BEHIND)

    @property
    def behind(self) -> int:
        """Bytes behind the entry at which it is probed."""
        return BEHIND[self.first] if self.entry.endswith(_BEHIND) else 0


def measure_calls(folder: Path, rounds: int, chosen: Sequence[Variant]) -> dict[str, float]:
    """Give nanoseconds of CPU time per call of each variant, by name."""
    libraries = [copy_library(folder, one.first, one.name).resolve() for one in chosen]
    table = ProbeTable.load()
    ours = programs.GpuPrograms(table)
    pairs = list(zip(chosen, libraries, strict=True))
    try:
        for file, (one, path) in enumerate(pairs, 1):
            if one.loader == "libbpf":
                at = symbol_offset(path) + one.behind
                places = ((at,), (table.index(_ROW),), (0,), (EntryClass.EMULATED,))
                ours.attach(file, str(path), [Attachment(ProbeGroup.LAUNCH, False, *places)])
        peers = {one.name: path for one, path in pairs if one.loader == "bpftrace"}
        with Target(folder, libraries) as target, Bpftrace(peers) as peer:
            _await(target, [at for at, one in enumerate(chosen) if one.loader == "bpftrace"])
            taken: list[list[float]] = [[] for _ in chosen]
            for _ in range(rounds):
                for library, times in enumerate(taken):
                    times.append(target.call(library, 1, CALLS))
            counted = _launches(ours.drain(boottime_ns()))
            peer_counted = peer.end()
    finally:
        ours.close()
    calls = rounds * CALLS
    for file, one in enumerate(chosen, 1):
        if one.loader == "libbpf":
            seen = counted.get(file, 0)
        else:
            seen = min(calls, peer_counted.get(one.name, calls))  # it counts the waiting for it too
        assert seen == calls, f"{one.name}: expected {calls} calls, counted {seen}"
    return {one.name: statistics.median(of) for one, of in zip(chosen, taken, strict=True)}


def _await(target: Target, libraries: Sequence[int]) -> None:
    """Wait until bpftrace has attached to every library: calls are dear then."""
    deadline_s = time.monotonic() + _ATTACH_S
    while any(target.call(library, 1, 200) < _PROBED_NS for library in libraries):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"bpftrace did not attach within {_ATTACH_S:.0f} s")
        time.sleep(0.2)


def _launches(drain: ProbeDrain) -> dict[int, int]:
    found: dict[int, int] = {}
    for row in drain.launches:
        found[row.file] = found.get(row.file, 0) + row.launches
    return found


def measure(kept: Parts) -> Measured:
    folder = _built()
    governed, scale = probes_governed.governed, kept.scale
    chosen = [Variant(entry, by) for entry in ("push", "endbr64") for by in _LOADERS]
    rounds = kept.scaled(ROUNDS, 3)
    parts: dict[str, partial[Part]] = {"calls": partial(measure_calls, folder, rounds, chosen)}
    for rate in probes_governed.RATES:
        seconds = max(20.0, _SECONDS[rate] * scale)
        parts[f"governed-{rate}"] = partial(governed, folder, rate, seconds)
    seconds = max(20.0, _BURST_SECONDS * scale)
    parts["bursty"] = partial(governed, folder, _BURST_RATE, seconds, probes_governed.BURST_MS)
    parts["free"] = partial(probes_governed.free, folder, 30.0 * scale)
    for threads in _THREADS:
        flat_out = partial(probes_governed.flat_out, folder, threads, 10.0 * scale)
        parts[f"flat-out-{threads}"] = flat_out
    return Measured(figures({name: kept.get(name, part) for name, part in parts.items()}))


def figures(parts: Mapping[str, Part]) -> list[Figure]:
    calls, fastest = parts["calls"], parts["governed-50000"]
    peer, stepped = _cost(calls, "push_bpftrace"), _cost(calls, "endbr64_libbpf")
    count_error = abs(fastest.get("count_error", 1.0))  # 100 %: nothing was ever watched
    flat = [parts[f"flat-out-{threads}"] for threads in _THREADS]
    found = [
        Figure("ns_per_launch_push", _cost(calls, "push_libbpf"), "CPU-ns", peer),
        Figure("ns_per_launch_single_step", stepped, "CPU-ns", _cost(calls, "endbr64_bpftrace")),
        Figure("ns_per_launch_bpftrace", peer, "CPU-ns"),
        Figure("governor_overhead_percent_50k", 100 * fastest["overhead"], "%", _OVERHEAD_GOAL),
        Figure("governor_count_error_percent_50k", 100 * count_error, "%", _ERROR_GOAL),
        Figure("agent_core_percent_20k", 100 * parts["free"]["user_share"], "% of a core", 1.0),
        Figure("launches_lost_flat_out", sum(one["uncounted"] for one in flat), "launches", 0.0),
    ]
    found.append(
        Figure("ns_endbr64_bpftrace_1_threads", _cost(calls, "endbr64_bpftrace"), "CPU-ns")
    )
    for rate in probes_governed.RATES:
        found += _of_governed(f"{rate / 1000:g}k", parts[f"governed-{rate}"], _ERROR_GOAL)
    found += _of_governed("bursty_20k", parts["bursty"], None)
    found.append(Figure("launches_lost_20k", parts["free"]["uncounted"], "launches", 0.0))
    return found


def _cost(calls: Part, variant: str) -> float:
    """Give what a probe adds to a call."""
    return float(calls[variant] - calls[f"{variant.partition('_')[0]}_none"])


def _of_governed(name: str, part: Part, goal: float | None) -> list[Figure]:
    at = f"governed_{name}"
    found = [Figure(f"{at}_overhead_percent", 100 * part["overhead"], "%", _OVERHEAD_GOAL)]
    if "count_error" in part:
        error = 100 * part["count_error"]
        found.append(Figure(f"{at}_count_error_percent", error, "%", goal))
    return found


def _built() -> Path:
    """Build target and libraries; says what this machine lacks, where it lacks something."""
    reason = programs.unavailable()
    if platform.machine() != "x86_64":
        reason = "expected x86-64: the measured libraries are written for it"
    elif os.geteuid():
        reason = "expected root: probes are attached to another process"
    for program in ("gcc", "bpftrace"):
        if shutil.which(program) is None:
            reason = f"expected {program}: apt-get install {program}"
    if reason:
        raise SystemExit(f"bench: {reason}")
    folder = CACHE / "probes" / "build"
    build(folder)
    return folder


def driver(kept: Parts) -> Measured:
    """Time calls of a library that has the driver's first instructions, by place."""
    folder, rounds = _built(), kept.scaled(ROUNDS, 3)
    chosen = [Variant("driver", "none"), Variant("driver", "libbpf")]
    chosen.append(Variant(f"driver{_BEHIND}", "libbpf"))
    calls = kept.get("calls", lambda: measure_calls(folder, rounds, chosen))
    entry, moved = (_cost(calls, f"{one}_libbpf") for one in ("driver", f"driver{_BEHIND}"))
    return Measured([
        Figure("ns_per_launch_driver_entry", entry, "CPU-ns"),
        Figure("ns_per_launch_driver_moved", moved, "CPU-ns", _MOVED_GOAL_NS),
    ])  # fmt: skip
