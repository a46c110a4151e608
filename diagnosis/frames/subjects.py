"""Who is watched: cgroups that are named, make steps, use a GPU or have a rhythm of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import numpy as np

from collectors.devices.device_port import ProcessUse
from collectors.records.activity import MarkedProcess, StepMarks, StepSource

from .frame import Steps, Subject
from .gpu_signals import Caller, sharing, summed
from .host_signals import Places
from .period_detector import KEPT_NS, PeriodicProcess

_EXACT: Final = list(StepSource)


@dataclass(slots=True)
class Stepper:
    """One process that makes steps; its most exact mark counts while it comes."""

    process: MarkedProcess
    source: StepSource
    probe: str
    seen_ns: int
    open_ns: int | None = None
    waiting: list[StepMarks] = field(default_factory=list)

    def take(self, now_ns: int) -> Steps:
        marks, self.waiting = self.waiting, []
        none = np.zeros(0, np.int64)
        ended = np.concatenate([none, *(mark.ended_ns for mark in marks)])
        lasted = np.concatenate([none, *(mark.duration_ns for mark in marks)])
        if len(marks) > 1:
            order = np.argsort(ended, kind="stable")
            ended, lasted = ended[order], lasted[order]
        since_ns = self.open_ns if marks else None
        running = None if since_ns is None else max(0, now_ns - since_ns)
        return Steps(self.source, ended, lasted, sum(mark.lost for mark in marks), running)


class StepBook:
    def __init__(self) -> None:
        self._steppers: dict[tuple[int, int], Stepper] = {}

    def add(self, marks: StepMarks) -> None:
        """Take one record; of two marks of one process the more exact one counts."""
        key = (marks.pid, marks.start_ns)
        ended = marks.ended_ns
        last_ns = int(ended[-1]) if len(ended) else (marks.open_since_ns or 0)
        known = self._steppers.get(key)
        if known is None and not len(ended):
            return  # in its first step, which may never end
        if known is None or self._better(marks, known, last_ns):
            known = self._steppers[key] = Stepper(marks, marks.source, marks.probe, last_ns)
        if (known.source, known.probe) != (marks.source, marks.probe):
            return
        program = marks.program or known.process.program
        known.process = MarkedProcess(marks.pid, marks.start_ns, marks.cgroup, program)
        known.seen_ns = max(known.seen_ns, last_ns)
        known.open_ns = marks.open_since_ns
        known.waiting.append(marks)

    def steppers(self, now_ns: int) -> Iterator[Stepper]:
        """Give the processes that made a step in the last 60 s; forget the others."""
        for key, stepper in list(self._steppers.items()):
            if now_ns - stepper.seen_ns > KEPT_NS:
                del self._steppers[key]
            else:
                yield stepper

    def forget(self, pid: int, start_ns: int) -> None:
        self._steppers.pop((pid, start_ns), None)

    @staticmethod
    def _better(marks: StepMarks, known: Stepper, last_ns: int) -> bool:
        if not len(marks.ended_ns) or known.probe == marks.probe:
            return False
        if last_ns - known.seen_ns > KEPT_NS:
            return True
        return _EXACT.index(marks.source) < _EXACT.index(known.source)


MOST_SUBJECTS: Final = 16
_ACTIVE_NS: Final = 5_000_000_000
ROOT: Final = "/"

Alive = Callable[[int], bool]
Users = Mapping[int, Mapping[int, ProcessUse]]
SignalsOf = Callable[[str, int], dict[str, float]]
"""Signals of a cgroup at a time."""


@dataclass(slots=True)
class _Found:
    """A subject in the making; `own` are the processes that are known to be part of it."""

    cgroup: str
    program: str = ""
    steps: Steps | None = None
    rhythm: Steps | None = None
    own: set[int] = field(default_factory=set)
    whole: bool = True


@dataclass(frozen=True, slots=True)
class SubjectSecond:
    now_ns: int
    active: Collection[str]
    signals: SignalsOf
    users: Users
    callers: Mapping[int, Caller]
    rhythms: Sequence[PeriodicProcess] = ()


class SubjectBook:
    """Finds the subjects of each second; a subject expires after 60 s of silence."""

    def __init__(
        self, watch: Iterable[str] = (), places: Places | None = None, alive: Alive | None = None
    ) -> None:
        self._watch = tuple(watch)
        self._places = places or Places()
        self._alive = alive or _is_alive
        self._split: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self.steps = StepBook()

    def subjects(self, second: SubjectSecond) -> dict[str, Subject]:
        """Give at most MOST_SUBJECTS: named ones first, then by steps, GPU, rhythm."""
        found: dict[str, _Found] = {}
        for cgroup in self._named(second):
            found[cgroup] = _Found(cgroup)
        self._add_steps(found, second)
        self._add_users(found, second)
        self._add_rhythms(found, second)
        kept = list(found.items())[:MOST_SUBJECTS]
        return {key: self._subject(subject, second) for key, subject in kept}

    def _named(self, second: SubjectSecond) -> list[str]:
        for cgroup in second.active if self._watch else ():
            if any(fnmatchcase(cgroup, pattern) for pattern in self._watch):
                self._seen[cgroup] = second.now_ns
        self._seen = {c: at for c, at in self._seen.items() if second.now_ns - at <= KEPT_NS}
        return list(self._seen)

    def _add_steps(self, found: dict[str, _Found], second: SubjectSecond) -> None:
        by_cgroup: dict[str, list[Stepper]] = {}
        for stepper in self.steps.steppers(second.now_ns):
            by_cgroup.setdefault(stepper.process.cgroup, []).append(stepper)
        self._split = {c: n for c, n in self._split.items() if c in by_cgroup}
        for cgroup, steppers in by_cgroup.items():
            active = self._active(steppers, second.now_ns)
            if len(active) > 1:
                self._split[cgroup] = second.now_ns
                found.pop(cgroup, None)
            for stepper in active:
                split, process = cgroup in self._split, stepper.process
                key = f"{cgroup}#{process.pid}" if split else cgroup
                subject = found.setdefault(key, _Found(cgroup))
                subject.program, subject.steps = process.program, stepper.take(second.now_ns)
                subject.own.add(process.pid)
                subject.whole = not split

    def _active(self, steppers: list[Stepper], now_ns: int) -> list[Stepper]:
        """Leave out processes that ended while others of the cgroup go on: a job started again."""
        if len(steppers) == 1:
            return steppers
        alive = [
            stepper
            for stepper in steppers
            if now_ns - stepper.seen_ns <= _ACTIVE_NS
            or stepper.waiting
            or self._alive(stepper.process.pid)
        ]
        here = [stepper for stepper in alive if self._alive(stepper.process.pid)] or alive[-1:]
        for stepper in steppers:
            if stepper not in here:
                self.steps.forget(stepper.process.pid, stepper.process.start_ns)
        return here

    def _add_users(self, found: dict[str, _Found], second: SubjectSecond) -> None:
        pids = {pid: use.name for users in second.users.values() for pid, use in users.items()}
        pids |= {pid: caller.name for pid, caller in second.callers.items()}
        for pid, name in pids.items():
            place = self._places.of(pid, second.now_ns)
            if place is None or place.cgroup in self._split:
                continue
            subject = found.setdefault(place.cgroup, _Found(place.cgroup))
            subject.own.add(pid)
            subject.program = subject.program or name or place.program

    def _add_rhythms(self, found: dict[str, _Found], second: SubjectSecond) -> None:
        """A cgroup's rhythm is that of the process that makes its steps, else of its oldest."""
        for rhythm in sorted(second.rhythms, key=lambda rhythm: (rhythm.start_ns, rhythm.pid)):
            if rhythm.cgroup in self._split:
                own = found.get(f"{rhythm.cgroup}#{rhythm.pid}")
                if own is not None:
                    own.rhythm = rhythm.steps
                continue
            if rhythm.cgroup not in found and rhythm.cgroup == ROOT:
                continue
            subject = found.setdefault(rhythm.cgroup, _Found(rhythm.cgroup))
            if subject.rhythm is None or (subject.steps is not None and rhythm.pid in subject.own):
                subject.rhythm = rhythm.steps
                subject.program = subject.program or rhythm.program

    def _subject(self, found: _Found, second: SubjectSecond) -> Subject:
        gpus = tuple(gpu for gpu, here in second.users.items() if not found.own.isdisjoint(here))
        signals = second.signals(found.cgroup, second.now_ns)
        signals |= summed(second.callers[pid] for pid in sorted(found.own & second.callers.keys()))
        signals |= sharing(found.own, gpus, second.users, second.callers)
        return Subject(found.cgroup, found.program, signals, found.steps, found.rhythm, gpus)


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
