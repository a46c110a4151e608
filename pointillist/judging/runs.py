"""A dataset of recorded runs: what was done in each, and what its subjects truly felt of it.

Steps that a probe measured are the truth. A fault has impact when the p99 of steps in it is at
least 1.3 times that before; the impact begins when the p99 of the seconds that follow is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from diagnosis.detect.findings import Cause
from diagnosis.frames.frame import HostSample
from diagnosis.frames.recording import read_meta, read_recording
from transport.files.own_names import files_ending

T = TypeVar("T")
GROWING: Final = "growing"
INTENSITIES: Final = ("low", "middle", "high", GROWING)
NOTHING_WRONG: Final = "none"
"""The cause of a hard negative's span."""
LEARNING_NS: Final = 12_000_000_000
"""At first a detector learns what is usual: no hour in which it could have raised an alarm."""


class RunRefused(ValueError):
    """What is said of a run cannot be used; the message names the field."""


class RunKind(StrEnum):
    FAULT = "fault"
    FAULT_FREE = "fault_free"
    HARD_NEGATIVE = "hard_negative"
    OVERLAP = "overlap"


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """One injected fault and when it was there, CLOCK_BOOTTIME."""

    cause: Cause
    injector: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What the recorder wrote about a run.

    calm_from_ns when it began; the workload was warm by then
    subjects     keys of the watched subjects: spikes of others are not counted
    workers      pinned workers, at most one a core
    """

    name: str
    kind: RunKind
    workload: str
    intensity: str
    seed: int
    negative: str
    faults: tuple[InjectedFault, ...]
    calm_from_ns: int
    subjects: tuple[str, ...]
    workers: int

    @property
    def injectors(self) -> tuple[str, ...]:
        return tuple(fault.injector for fault in self.faults)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRun:
    facts: Facts
    frames: tuple[HostSample, ...]

    @property
    def worker_hours(self) -> float:
        """Hours of one worker after those seconds in which a detector learns what is usual."""
        ready = self.facts.calm_from_ns + LEARNING_NS
        watched = sum(frame.span_ns for frame in self.frames if frame.boottime_ns > ready) / 1e9
        return self.facts.workers * watched / 3600


def facts_of(name: str, meta: Mapping[str, Any], frames: Sequence[HostSample]) -> Facts:
    """Read what a recording says of itself. Raises RunRefused."""
    if not frames:
        raise RunRefused(f"{name}: expected seconds, got none")
    spans = [_fault(name, span) for span in _typed(name, meta, "spans", list, "a list", [])]
    faults = tuple(span for span in spans if span is not None)
    quiet = str(meta.get("injector", "")) if spans and not faults else ""
    kind = RunKind.HARD_NEGATIVE if quiet else RunKind.FAULT_FREE
    if faults:
        kind = RunKind.OVERLAP if len(faults) > 1 else RunKind.FAULT
    return Facts(
        name=name,
        kind=kind,
        workload=_typed(name, meta, "workload", str, "text"),
        intensity=_intensity(name, meta.get("intensity", "")),
        seed=_whole(name, meta, "seed"),
        negative=quiet,
        faults=faults,
        calm_from_ns=frames[0].boottime_ns - frames[0].span_ns,
        subjects=_subjects(_typed(name, meta, "subjects", list, "a list", []), frames),
        workers=max(1, _whole(name, meta, "workers", 1)),
    )


def _subjects(named: Sequence[Any], frames: Iterable[HostSample]) -> tuple[str, ...]:
    """Keys that stand for the named cgroups: themselves, what is below them, their processes."""
    seen = sorted({key for frame in frames for key in frame.subjects})
    if not named:
        return tuple(seen)
    starts = tuple(f"{name}{end}" for name in named for end in "/#")
    names = {str(name) for name in named}
    return tuple(key for key in seen if key in names or key.startswith(starts))


def _fault(name: str, told: Any) -> InjectedFault | None:
    """Read a span; None of one in which nothing was wrong."""
    if not isinstance(told, Mapping):
        raise RunRefused(f"{name}: spans: expected tables, got {type(told).__name__}")
    if told.get("cause") == NOTHING_WRONG:
        return None
    try:
        cause = Cause(str(told.get("cause")))
    except ValueError:
        got = repr(told.get("cause"))
        raise RunRefused(f"{name}: spans: expected a cause, got {got}") from None
    start, end = _whole(name, told, "start_ns"), _whole(name, told, "end_ns")
    if end <= start:
        raise RunRefused(f"{name}: spans: expected an end after {start}, got {end}")
    return InjectedFault(cause, str(told.get("injector", "")), start, end)


def _intensity(name: str, told: Any) -> str:
    """Levels are told by number or by name; a run without a fault has none."""
    if told in {None, ""}:
        return ""
    if told in INTENSITIES:
        return str(told)
    if isinstance(told, int) and 0 <= told < len(INTENSITIES):
        return INTENSITIES[told]
    raise RunRefused(f"{name}: intensity: expected one of {list(INTENSITIES)}, got {told!r}")


def _typed(
    name: str, meta: Mapping[str, Any], key: str, kind: type[T], what: str, otherwise: Any = None
) -> T:
    found = meta.get(key, otherwise)
    if not isinstance(found, kind) or isinstance(found, bool):
        raise RunRefused(f"{name}: {key}: expected {what}, got {found!r:.80}")
    return found


def _whole(name: str, meta: Mapping[str, Any], key: str, otherwise: int | None = None) -> int:
    return _typed(name, meta, key, int, "a whole number", otherwise)


LABELS = frozenset({"workload", "seed", "spans"})
"""What the facts of a labelled recording name at least."""


def run_paths(folder: Path) -> list[Path]:
    """List a folder's recordings, those below it too. Raises RunRefused where there is none."""
    found = [folder]
    if folder.is_dir():
        found = [path for at, *_ in os.walk(folder) for path in files_ending(Path(at), ".parquet")]
    if not found:
        raise RunRefused(f"{folder}: expected recordings (*.parquet), found none")
    return sorted(found)


def labelled_paths(folder: Path) -> list[Path]:
    """List recordings whose facts say what was done. Raises RunRefused where none does."""
    found = [path for path in run_paths(folder) if set(read_meta(path)) >= LABELS]
    if not found:
        named = ", ".join(sorted(LABELS))
        raise RunRefused(f"{folder}: expected recordings that name {named}, found none")
    return found


def read_run(path: Path) -> RecordedRun:
    """Read a labelled recording. Raises RunRefused, RecordingError."""
    recording = read_recording(path)
    return RecordedRun(facts_of(path.stem, recording.meta, recording.frames), recording.frames)


def runs_in(folder: Path) -> Iterator[RecordedRun]:
    """Read the labelled runs of a folder, one at a time. Raises RunRefused, RecordingError."""
    yield from map(read_run, labelled_paths(folder))


GATE: Final = 1.3
LASTING_NS: Final = 3_000_000_000
"""A long step is the onset when in this time from it on the p99 of the steps is too long."""
_LEAST_LONG: Final = 2
_LONG_SHARE: Final = 0.01
"""One step in a hundred above a limit: their p99 is."""
RECOVERY_NS: Final = 10_000_000_000
"""After a fault, steps may be long for a while: caches are cold, queues are full."""
LEAST_STEPS: Final = 20


@dataclass(frozen=True, slots=True)
class Episode:
    """One fault span of one run, as its subject felt it; overlapping faults are one episode.

    rise        p99 of steps in the span over that before; None where too few steps tell
    onset_ns    when the first too long step of many was too long; None without impact
    """

    run: str
    subject: str
    causes: tuple[Cause, ...]
    start_ns: int
    end_ns: int
    rise: float | None
    onset_ns: int | None

    @property
    def impact(self) -> bool:
        return self.onset_ns is not None


@dataclass(frozen=True, slots=True, eq=False)
class TrueSteps:
    """Measured steps of a subject: end and duration, int64[n], ns, ascending by end."""

    ended_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]

    def overlapping(self, start_ns: int, end_ns: int) -> TrueSteps:
        began = self.ended_ns - self.duration_ns
        there = (self.ended_ns > start_ns) & (began < end_ns)
        return TrueSteps(self.ended_ns[there], self.duration_ns[there])


def true_steps(run: RecordedRun, subject: str) -> TrueSteps:
    """Collect a subject's steps of a run: the probe's, or its rhythm where no probe marked any."""
    watched = [own for frame in run.frames if (own := frame.subjects.get(subject)) is not None]
    chosen = [own.steps for own in watched if own.steps is not None]
    chosen = chosen or [own.rhythm for own in watched if own.rhythm is not None]
    nothing = np.empty(0, np.int64)
    ended = np.concatenate([nothing, *(steps.ended_ns for steps in chosen)])
    took = np.concatenate([nothing, *(steps.duration_ns for steps in chosen)])
    order = np.argsort(ended, kind="stable")
    return TrueSteps(ended[order], took[order])


def episodes(run: RecordedRun) -> list[Episode]:
    return [
        _episode(run, subject, faults)
        for subject in run.facts.subjects
        for faults in _overlapping(run.facts.faults)
    ]


def _overlapping(faults: tuple[InjectedFault, ...]) -> list[tuple[InjectedFault, ...]]:
    groups: list[list[InjectedFault]] = []
    for fault in sorted(faults, key=lambda injected: injected.start_ns):
        if groups and fault.start_ns < max(injected.end_ns for injected in groups[-1]):
            groups[-1].append(fault)
        else:
            groups.append([fault])
    return [tuple(group) for group in groups]


def _episode(run: RecordedRun, subject: str, faults: tuple[InjectedFault, ...]) -> Episode:
    start, end = min(fault.start_ns for fault in faults), max(fault.end_ns for fault in faults)
    steps = true_steps(run, subject)
    before = _calm_before(run, steps, start)
    within = steps.overlapping(start, end)
    rise = onset = None
    if min(before.ended_ns.size, within.ended_ns.size) > 0 and before.ended_ns.size >= LEAST_STEPS:
        limit = GATE * float(np.percentile(before.duration_ns, 99))
        rise = GATE * float(np.percentile(within.duration_ns, 99)) / limit
        first = lasting(within.ended_ns, within.duration_ns, limit) if rise >= GATE else None
        if first is not None:
            # The moment it was too long, not the later one when it ended.
            begun = within.ended_ns[first] - within.duration_ns[first]
            onset = max(start, int(begun + limit))
    causes = tuple(dict.fromkeys(fault.cause for fault in faults))
    return Episode(run.facts.name, subject, causes, start, end, rise, onset)


def _calm_before(run: RecordedRun, steps: TrueSteps, start_ns: int) -> TrueSteps:
    began = steps.ended_ns - steps.duration_ns
    calm = (began >= run.facts.calm_from_ns) & (steps.ended_ns < start_ns)
    for fault in run.facts.faults:
        if fault.end_ns < start_ns:
            calm &= (steps.ended_ns < fault.start_ns) | (began > fault.end_ns + RECOVERY_NS)
    return TrueSteps(steps.ended_ns[calm], steps.duration_ns[calm])


def lasting(
    ended_ns: NDArray[np.int64], duration_ns: NDArray[np.int64], limit_ns: float
) -> int | None:
    """Find the place of the step with which steps became too long; None where they did not.

    Within three seconds from it on one step in a hundred, at least two, are above the limit: no
    chance outlier before the impact. Steps are int64[n], ascending by end.
    """
    long = duration_ns > limit_ns
    seen = np.concatenate([[0], np.cumsum(long)])
    places = np.flatnonzero(long)
    until = np.searchsorted(ended_ns, ended_ns[places] + LASTING_NS, side="right")
    found = seen[until] - seen[places]
    # As numpy interpolates a 99th percentile: above the limit from one in a hundred on.
    enough = (found >= _LEAST_LONG) & (found > _LONG_SHARE * (until - places - 1))
    return int(places[enough][0]) if enough.any() else None
