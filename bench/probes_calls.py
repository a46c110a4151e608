"""What one probed call costs: by first instruction, loader, return probe and threads.

Every variant has a copy of the library of its own, and all are probed at the same time: the process
calls one after the other, round by round, so that all see the same machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.probes_target import BEHIND, ENTRIES, Bpftrace, Target, copy_library, symbol_offset
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
        """A name of letters and underscores."""
        return f"{self.entry}_{self.loader}{'_return' if self.returns else ''}"

    @property
    def first(self) -> str:
        """First instruction of its function."""
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


def measure(
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
    """Count launches by file."""
    found: dict[int, int] = {}
    for row in drain.launches:
        found[row.file] = found.get(row.file, 0) + row.launches
    return found
