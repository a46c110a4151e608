"""What probing GPU calls costs, and whether everything is counted: make bench-probes, as root.

What one probed call costs is told by first instruction, loader, return probe and threads. Every
variant has a copy of the library of its own, and all are probed at the same time: the process calls
one after the other, round by round, so that all see the same machine.
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
from typing import Any, Final, NamedTuple

from bench import probes_governed
from bench.parts import Measured, Part, Parts
from bench.probes_target import (
    BEHIND,
    ENTRIES,
    Bpftrace,
    Target,
    build,
    copy_library,
    symbol_offset,
)
from bench.record import CACHE, Figure
from collectors.binaries.elf_file import EntryClass
from collectors.boot_clock import boottime_ns
from collectors.gpu_calls import programs, programs_bcc
from collectors.gpu_calls.counts import ProbeDrain
from collectors.gpu_calls.probe_plan import Attachment
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.records.gpu_calls import ProbeGroup

ROUNDS: Final = 31
CALLS: Final = 4_000
THREADS: Final = (1, 4)
_BEHIND: Final = "_behind"
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
    loader   libbpf, bcc, bpftrace, or none
    """

    entry: str
    loader: str
    returns: bool

    @property
    def name(self) -> str:
        return f"{self.entry}_{self.loader}{'_return' if self.returns else ''}"

    @property
    def first(self) -> str:
        return self.entry.removesuffix(_BEHIND)

    @property
    def behind(self) -> int:
        """Bytes behind the entry at which it is probed."""
        return BEHIND[self.first] if self.entry.endswith(_BEHIND) else 0


def variants(entries: Sequence[str] = tuple(ENTRIES)) -> list[Variant]:
    """Give all that are compared, of some first instructions or of all.

    Debian's bpftrace is built without places behind an entry.
    """
    found = [Variant(entry, "none", False) for entry in entries]
    for entry in (*entries, *(f"{entry}{_BEHIND}" for entry in entries if entry in BEHIND)):
        for loader in ("libbpf", "bcc", "bpftrace"):
            if loader != "bpftrace" or not entry.endswith(_BEHIND):
                found += [Variant(entry, loader, False), Variant(entry, loader, True)]
    return found


def measure_calls(
    folder: Path, rounds: int = ROUNDS, entries: Sequence[str] = tuple(ENTRIES)
) -> dict[str, Any]:
    """Give, for each variant and number of threads, nanoseconds of CPU time per call.

    entries  first instructions that are compared
    Returns  {variant: {threads: median}}
    """
    chosen = variants(entries)
    libraries = [copy_library(folder, one.first, one.name).resolve() for one in chosen]
    table = ProbeTable.load()
    loaders: dict[str, programs.GpuPrograms | programs_bcc.GpuPrograms]
    loaders = {"libbpf": programs.GpuPrograms(table), "bcc": programs_bcc.GpuPrograms(table)}
    peers = {
        one.name: (path, one.returns)
        for one, path in zip(chosen, libraries, strict=True)
        if one.loader == "bpftrace"
    }
    try:
        for file, (one, path) in enumerate(zip(chosen, libraries, strict=True), 1):
            if one.loader in loaders:
                attachments = _attachments(one, path, table)
                loaders[one.loader].attach(file, str(path), attachments)
        with Target(folder, libraries) as target, Bpftrace(peers) as peer:
            _await(target, [at for at, one in enumerate(chosen) if one.loader == "bpftrace"])
            times = _rounds(target, chosen, rounds)
            counted = {name: _launches(one.drain(boottime_ns())) for name, one in loaders.items()}
            peer_counted = peer.end()
    finally:
        for loader in loaders.values():
            loader.close()
    calls = rounds * sum(CALLS // threads * threads for threads in THREADS)
    for file, one in enumerate(chosen, 1):
        if one.loader in loaders:
            seen = counted[one.loader].get(file, 0)
        else:
            seen = min(calls, peer_counted.get(one.name, calls))  # it counts the waiting for it too
        assert seen == calls, f"{one.name}: expected {calls} calls, counted {seen}"
    return {one.name: spread for one, spread in zip(chosen, times, strict=True)}


def _attachments(one: Variant, path: Path, table: ProbeTable) -> list[Attachment]:
    at = symbol_offset(path) + one.behind
    places = ((at,), (table.index(_ROW),), (0,), (EntryClass.EMULATED,))
    found = [Attachment(ProbeGroup.LAUNCH, False, *places)]
    if one.returns:
        found.append(Attachment(ProbeGroup.LAUNCH_RESULT, True, *places))
    return found


def _await(target: Target, libraries: Sequence[int]) -> None:
    """Wait until bpftrace has attached to every library: calls are dear then."""
    deadline_s = time.monotonic() + _ATTACH_S
    while any(target.call(library, 1, 200) < _PROBED_NS for library in libraries):
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"bpftrace did not attach within {_ATTACH_S:.0f} s")
        time.sleep(0.2)


def _rounds(target: Target, chosen: Sequence[Variant], rounds: int) -> list[dict[str, float]]:
    taken: list[dict[int, list[float]]] = [{n: [] for n in THREADS} for _ in chosen]
    for _ in range(rounds):
        for library in range(len(chosen)):
            for threads in THREADS:
                taken[library][threads].append(target.call(library, threads, CALLS // threads))
    return [{str(n): statistics.median(values) for n, values in one.items()} for one in taken]


def _launches(drain: ProbeDrain) -> dict[int, int]:
    found: dict[int, int] = {}
    for row in drain.launches:
        found[row.file] = found.get(row.file, 0) + row.launches
    return found


def measure(kept: Parts) -> Measured:
    folder = _built()
    governed, scale = probes_governed.governed, kept.scale
    rounds, cycles = kept.scaled(ROUNDS, 3), kept.scaled(30, 5)
    parts = {"calls": partial(measure_calls, folder, rounds)}
    for rate in probes_governed.RATES:
        seconds = max(20.0, _SECONDS[rate] * scale)
        parts[f"governed-{rate}"] = partial(governed, folder, rate, seconds)
    seconds = max(20.0, _BURST_SECONDS * scale)
    parts["bursty"] = partial(governed, folder, _BURST_RATE, seconds, probes_governed.BURST_MS)
    parts["free"] = partial(probes_governed.free, folder, 30.0 * scale)
    for threads in _THREADS:
        flat_out = partial(probes_governed.flat_out, folder, threads, 10.0 * scale)
        parts[f"flat-out-{threads}"] = flat_out
    parts["switching"] = partial(probes_governed.stalls, folder, cycles)
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
    found += _of_calls(calls)
    for rate in probes_governed.RATES:
        found += _of_governed(f"{rate / 1000:g}k", parts[f"governed-{rate}"], _ERROR_GOAL)
    found += _of_governed("bursty_20k", parts["bursty"], None)
    free = parts["free"]
    attached_ns = parts["governed-1000"]["overhead_ns_a_launch"]
    found += [
        Figure("ns_per_launch_at_1k", attached_ns, "ns, of a launch once a millisecond"),
        Figure("agent_system_core_percent_20k", 100 * free["system_share"], "% of a core"),
        Figure("probes_overhead_percent_20k_ungoverned", 100 * free["overhead"], "%"),
        Figure("launches_lost_20k", free["uncounted"], "launches", 0.0),
    ]
    for threads, one in zip(_THREADS, flat, strict=True):
        found.append(Figure(f"launches_flat_out_{threads}_threads", one["launches"], "launches"))
    for name in ("attach_ms", "detach_ms", "attach_stall_ms", "detach_stall_ms"):
        found.append(Figure(f"link_{name}", parts["switching"][name], "ms, two links"))
    return found


def _cost(calls: Part, variant: str, threads: int = 1) -> float:
    entry = variant.partition("_")[0]
    return float(calls[variant][str(threads)] - calls[f"{entry}_none"][str(threads)])


def _of_calls(calls: Part) -> list[Figure]:
    return [
        Figure(f"ns_{variant}_{threads}_threads", _cost(calls, variant, threads), "CPU-ns")
        for variant in calls
        if not variant.endswith("_none")
        for threads in THREADS
    ]


def _of_governed(name: str, part: Part, goal: float | None) -> list[Figure]:
    at = f"governed_{name}"
    found = [
        Figure(f"{at}_overhead_percent", 100 * part["overhead"], "%", _OVERHEAD_GOAL),
        Figure(f"{at}_overhead_interval", 100 * part["overhead_interval"], "+- %"),
        Figure(f"{at}_overhead_of_cpu_percent", 100 * part["overhead_of_cpu"], "%"),
        Figure(f"{at}_duty_percent", 100 * part["duty"], "%"),
    ]
    if "count_error" in part:
        error, interval = 100 * part["count_error"], 100 * part["count_interval"]
        found.append(Figure(f"{at}_count_error_percent", error, "%", goal))
        found.append(Figure(f"{at}_count_interval", interval, "+- %"))
    return found


def _built() -> Path:
    """Build target and libraries; says what this machine lacks, where it lacks something."""
    reason = programs.unavailable() or programs_bcc.unavailable()
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
    """Time calls of a library that has the driver's first instructions, by place and by prober."""
    folder, rounds = _built(), kept.scaled(ROUNDS, 3)
    calls = kept.get("calls", lambda: measure_calls(folder, rounds, ("driver",)))
    found = []
    for entry, name in {"driver": "entry", "driver_behind": "moved"}.items():
        for loader in ("libbpf", "bcc", "bpftrace"):
            variant = f"{entry}_{loader}"
            if variant not in calls:
                continue  # bpftrace probes entries alone
            goal = _MOVED_GOAL_NS if variant == "driver_behind_libbpf" else None
            label = f"ns_per_launch_driver_{name}{'' if loader == 'libbpf' else f'_{loader}'}"
            found.append(Figure(label, _cost(calls, variant), "CPU-ns", goal))
    return Measured(found)
