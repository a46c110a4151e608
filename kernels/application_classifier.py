"""Application class of each process, from the launches that a source sees, as they come."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from .families import UNKNOWN_APPLICATION
from .kernel_mix import DECIDES, KernelMix, MixMeasure, MixRow, operation
from .kernel_name import normalise
from .signatures import Match, Signatures

LEAST_LAUNCHES: Final = 500
"""Fewer say nothing: at 500 launches the sampling of a mix moves it by about 0.05."""

PART_LAUNCHES: Final = 5_000
PARTS: Final = 8
"""The window: the newest 7 to 8 parts of 5,000 launches, some seconds of a busy process."""

_MOST_OPERATIONS: Final = 512
_MOST_PROCESSES: Final = 1_024
_CACHED_NAMES: Final = 16_384

_cached_normalise = lru_cache(maxsize=_CACHED_NAMES)(normalise)


@dataclass(slots=True)
class _Part:
    launches: Counter[tuple[str, str]] = field(default_factory=Counter)
    times: Counter[tuple[str, str]] = field(default_factory=Counter)
    untimed: bool = False
    total: int = 0


@dataclass(slots=True)
class _Process:
    parts: deque[_Part]
    judged: Match | None = None
    stale: bool = True


class ApplicationClassifier:
    """One sliding window per process; the least recently seen process is forgotten first.

    Memory is bounded: 1,024 processes x 8 parts x 512 operations; operations beyond that count
    under their family.
    """

    def __init__(
        self,
        signatures: Signatures,
        measure: MixMeasure = DECIDES,
        in_rounds: bool = False,
    ) -> None:
        """Start with no process.

        in_rounds   the source aggregates, and calls `end_round` after each drain: its rows hold
                    thousands of launches of one kernel, and a window that ended between two of
                    them would hold the last kernels alone
        """
        self._signatures = signatures
        self._measure = measure
        self._processes: OrderedDict[Hashable, _Process] = OrderedDict()
        self._unturned: set[Hashable] = set()
        self._in_rounds = in_rounds
        self.forgotten = 0
        """Processes pushed out by newer ones."""

    def observe(
        self,
        process: Hashable,
        kernel_name: str,
        family: str,
        launches: int,
        gpu_time_ns: int | None,
    ) -> None:
        """Count launches of one kernel by a process.

        process       any key that names one process for as long as it lives
        launches      >= 0, corrected for sampling where the source samples
        gpu_time_ns   None where the source sees launches only
        """
        if launches < 0:
            raise ValueError(f"expected launches of at least 0, got {launches}")
        known = self._touch(process)
        part = known.parts[-1]
        place = operation(_cached_normalise(kernel_name), family), family
        if place not in part.launches and len(part.launches) >= _MOST_OPERATIONS:
            place = family, family
        part.launches[place] += launches
        part.times[place] += gpu_time_ns or 0
        part.untimed = part.untimed or gpu_time_ns is None
        part.total += launches
        known.stale = True
        self._unturned.add(process)
        if not self._in_rounds:
            self._turn(process)

    def end_round(self) -> None:
        """Say that all kernels of a drain were told; parts end here only, with `in_rounds`."""
        for process in self._unturned:
            self._turn(process)
        self._unturned.clear()

    def application(self, process: Hashable) -> str:
        """Return the class of a process; `unknown` until it is seen enough of, or never seen."""
        match = self.match(process)
        return match.application if match else UNKNOWN_APPLICATION

    def match(self, process: Hashable) -> Match | None:
        """Return what a process is nearest to, None while too few launches were seen."""
        known = self._processes.get(process)
        if known is None or sum(part.total for part in known.parts) < LEAST_LAUNCHES:
            return None
        if known.stale:
            mix = self._mix(known)
            known.judged = self._signatures.nearest(mix) if mix.families else None
            known.stale = False
        return known.judged

    def forget(self, process: Hashable) -> None:
        """Drop a process that ended; one never seen is no error."""
        self._processes.pop(process, None)
        self._unturned.discard(process)

    def _turn(self, process: Hashable) -> None:
        parts = self._processes[process].parts
        if parts[-1].total >= PART_LAUNCHES:
            parts.append(_Part())

    def _touch(self, process: Hashable) -> _Process:
        known = self._processes.get(process)
        if known is None:
            known = self._processes[process] = _Process(deque([_Part()], maxlen=PARTS))
            if len(self._processes) > _MOST_PROCESSES:
                oldest, _ = self._processes.popitem(last=False)
                self._unturned.discard(oldest)
                self.forgotten += 1
        self._processes.move_to_end(process)
        return known

    def _mix(self, known: _Process) -> KernelMix:
        launches: Counter[tuple[str, str]] = Counter()
        times: Counter[tuple[str, str]] = Counter()
        for part in known.parts:
            launches.update(part.launches)
            times.update(part.times)
        untimed = any(part.untimed for part in known.parts)
        measure = MixMeasure.LAUNCHES if untimed else self._measure
        rows = [MixRow(*place, count, times[place]) for place, count in launches.items()]
        return KernelMix.of(rows, measure)
