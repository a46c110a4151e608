"""Watches the ranks of one job on this host, each in a cgroup of its own, by real sources."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import Final, Self

from collectors.boot_clock import boottime_ns
from collectors.bpf.cgroup_names import CgroupNames, hierarchy_of
from collectors.ebpf.ebpf_source import EbpfSource
from collectors.interface import SourceRegistry
from collectors.records.activity import Record, StepMarks
from collectors.steps.steps_source import StepsSource
from diagnosis.frames.frame import HostSample
from diagnosis.frames.framer import Framer, LiveFrames
from transport.process.supervision import Closing

from .collectives import CallRole, collective_probes, role_of
from .judge import JobJudgement, judge
from .marked_calls import BusySeconds, MarkedCalls, TimeSpent
from .peers import PeerRules

MOST_RANKS: Final = 256


class NoRanks(Exception):
    """No cgroup of processes matches: says what was looked for, and where."""


@dataclass(frozen=True, slots=True)
class RankGroup:
    cgroup: str
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Watched:
    """What is known of a job so far.

    by_calls   from the collectives' entries and returns; None where no such mark came
    by_busy    from how busy the ranks' cgroups were; None before the first second
    reasons    what a slow rank's time goes to, by rank, where its cgroup tells
    """

    by_calls: JobJudgement | None
    by_busy: JobJudgement | None
    reasons: dict[int, TimeSpent]

    @property
    def best(self) -> JobJudgement | None:
        return self.by_calls or self.by_busy


def find_ranks(pattern: str, root: str | None = None) -> tuple[RankGroup, ...]:
    """Find the cgroups of a job, in the order of the numbers in their names.

    pattern   of cgroup paths, `/train/rank*`
    Raises    NoRanks, SourceUnavailable
    """
    root = root or hierarchy_of("cpu").path
    found = []
    names = CgroupNames(root)
    names.scan()
    for cgroup in names.every():
        pids = _pids(Path(f"{root}{cgroup}/cgroup.procs")) if fnmatchcase(cgroup, pattern) else ()
        if pids:
            found.append(RankGroup(cgroup, pids))
    if not 2 <= len(found) <= MOST_RANKS:
        raise NoRanks(
            f"expected 2 to {MOST_RANKS} cgroups with processes that match {pattern!r} under "
            f"{root}, got {len(found)}"
        )

    def by_numbers(rank: RankGroup) -> list[tuple[int, str]]:
        parts = re.split(r"(\d+)", rank.cgroup)
        return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]

    return tuple(sorted(found, key=by_numbers))


def _pids(file: Path) -> tuple[int, ...]:
    """Read the processes of a cgroup; none where it was removed, or holds threads alone."""
    try:
        return tuple(int(pid) for pid in file.read_text(encoding="utf-8").split())
    except OSError:
        return ()


class JobWatch(Closing):
    """Sources of this process, kept apart by rank; a context, at whose end they stop."""

    def __init__(self, ranks: Sequence[RankGroup], stages: Sequence[int] | None = None) -> None:
        cgroups = [rank.cgroup for rank in ranks]
        self._calls = MarkedCalls(cgroups, stages)
        self._busy = BusySeconds(cgroups, stages)
        self.probes = collective_probes(pid for rank in ranks for pid in rank.pids)
        registry = SourceRegistry()
        registry.register("ebpf", EbpfSource)
        if self.probes:
            registry.register("steps", lambda: StepsSource(self.probes))
        framer = _CallFramer(self._calls, watch=[escape(cgroup) for cgroup in cgroups])
        self.live = LiveFrames(registry, framer)

    @property
    def by_hosts(self) -> bool:
        """Whether collectives return at once: then waits are for hosts, never for a slow GPU."""
        return any(role_of(probe.title) is CallRole.ENQUEUES for probe in self.probes)

    def __enter__(self) -> Self:
        self.live.__enter__()
        return self

    def close(self) -> None:
        self.live.close()

    def watch(self, seconds: float, on_frame: Callable[[HostSample], None] | None = None) -> None:
        end_s = time.monotonic() + seconds
        for frame in self.live.frames(until=lambda: time.monotonic() > end_s):
            self._busy.add(frame)
            if on_frame is not None:
                on_frame(frame)

    def found(self, since_ns: int = 0, rules: PeerRules | None = None) -> Watched:
        marked, busy = self._calls.job(since_ns), self._busy.job(since_ns)
        by_calls = judge(marked, rules) if marked else None
        by_busy = judge(busy, rules) if busy else None
        slow = {result.rank for judged in (by_calls, by_busy) if judged for result in judged.slow}
        reasons = {rank: self._busy.reason(rank, since_ns) for rank in slow}
        told = {rank: reason for rank, reason in reasons.items() if reason is not None}
        return Watched(by_calls, by_busy, told)

    @staticmethod
    def now_ns() -> int:
        return boottime_ns()


class _CallFramer(Framer):
    def __init__(self, calls: MarkedCalls, watch: Sequence[str]) -> None:
        super().__init__(watch=watch)
        self._marked = calls

    def take(self, records: Iterable[Record]) -> None:
        kept = []
        for record in records:
            if isinstance(record, StepMarks):
                self._marked.add(record)
                if role_of(record.probe) is not CallRole.MEETS:
                    continue  # a part of a meeting, and no step
            kept.append(record)
        super().take(kept)
