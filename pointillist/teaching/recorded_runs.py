"""A recorded run and what is known of it: workload, faults, seed; and a folder of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from diagnosis.detect.findings import Cause
from diagnosis.frames.frame import Frame
from diagnosis.frames.recording import read_meta, read_recording

GROWING: Final = "growing"
INTENSITIES: Final = ("low", "middle", "high", GROWING)
NOTHING_WRONG: Final = "none"
"""The cause of a hard negative's span."""
LEARNING_NS: Final = 12_000_000_000
"""At first a detector learns what is usual: no hour in which it could have raised an alarm."""


class RunRefused(ValueError):
    """What is said of a run cannot be used; the message names the field."""


class RunKind(StrEnum):
    """What happens in a run."""

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

    negative     the hard negative's name, "" where there is none
    rising       the fault grows slowly: there is something to warn of
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
    rising: bool
    faults: tuple[InjectedFault, ...]
    calm_from_ns: int
    subjects: tuple[str, ...]
    workers: int

    @property
    def injectors(self) -> tuple[str, ...]:
        """Names of the injectors at work, in order."""
        return tuple(fault.injector for fault in self.faults)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedRun:
    """One recording."""

    facts: Facts
    frames: tuple[Frame, ...]

    @property
    def watched_s(self) -> float:
        """Seconds recorded after those in which a detector learns what is usual."""
        ready = self.facts.calm_from_ns + LEARNING_NS
        return sum(frame.span_ns for frame in self.frames if frame.boottime_ns > ready) / 1e9

    @property
    def worker_hours(self) -> float:
        """Hours of one worker that were watched."""
        return self.facts.workers * self.watched_s / 3600


def facts_of(name: str, meta: Mapping[str, Any], frames: Sequence[Frame]) -> Facts:
    """Read what a recording says of itself.

    Raises      RunRefused when a field is missing or of another kind, or nothing was recorded
    """
    if not frames:
        raise RunRefused(f"{name}: expected seconds, got none")
    spans = [_fault(name, span) for span in _list(name, meta, "spans")]
    faults = tuple(span for span in spans if span is not None)
    quiet = str(meta.get("injector", "")) if spans and not faults else ""
    return Facts(
        name=name,
        kind=_kind(faults, quiet),
        workload=_text(name, meta, "workload"),
        intensity=_intensity(name, meta.get("intensity", "")),
        seed=_whole(name, meta, "seed"),
        negative=quiet,
        rising=meta.get("intensity") == GROWING or meta.get("ramp") is True,
        faults=faults,
        calm_from_ns=frames[0].boottime_ns - frames[0].span_ns,
        subjects=_subjects(
            tuple(str(subject) for subject in _list(name, meta, "subjects")), frames
        ),
        workers=max(1, _whole(name, {"workers": meta.get("workers", 1)}, "workers")),
    )


def _subjects(named: tuple[str, ...], frames: Iterable[Frame]) -> tuple[str, ...]:
    """Keys that stand for the named cgroups: themselves, what is below them, their processes."""
    seen = sorted({key for frame in frames for key in frame.subjects})
    if not named:
        return tuple(seen)
    return tuple(
        key
        for key in seen
        if any(key == name or key.startswith((f"{name}/", f"{name}#")) for name in named)
    )


def _kind(faults: tuple[InjectedFault, ...], quiet: str) -> RunKind:
    if faults:
        return RunKind.OVERLAP if len(faults) > 1 else RunKind.FAULT
    return RunKind.HARD_NEGATIVE if quiet else RunKind.FAULT_FREE


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


def _list(name: str, meta: Mapping[str, Any], key: str) -> list[Any]:
    found = meta.get(key, [])
    if not isinstance(found, list):
        raise RunRefused(f"{name}: {key}: expected a list, got {type(found).__name__}")
    return found


def _text(name: str, meta: Mapping[str, Any], key: str) -> str:
    found = meta.get(key)
    if not isinstance(found, str):
        raise RunRefused(f"{name}: {key}: expected text, got {found!r}")
    return found


def _whole(name: str, meta: Mapping[str, Any], key: str) -> int:
    found = meta.get(key)
    if not isinstance(found, int) or isinstance(found, bool):
        raise RunRefused(f"{name}: {key}: expected a whole number, got {found!r}")
    return found


LABELS = frozenset({"workload", "seed", "spans"})
"""What the facts of a labelled recording name at least."""


def run_paths(folder: Path) -> list[Path]:
    """List a folder's recordings, those below it included.

    Raises      RunRefused where there is none
    """
    found = sorted(folder.rglob("*.parquet")) if folder.is_dir() else [folder]
    if not found:
        raise RunRefused(f"{folder}: expected recordings (*.parquet), found none")
    return found


def labelled_paths(folder: Path) -> list[Path]:
    """List the recordings whose facts say what was done.

    Raises      RunRefused where none does
    """
    found = [path for path in run_paths(folder) if set(read_meta(path)) >= LABELS]
    if not found:
        named = ", ".join(sorted(LABELS))
        raise RunRefused(f"{folder}: expected recordings that name {named}, found none")
    return found


def read_run(path: Path) -> RecordedRun:
    """Read a labelled recording.

    Raises      RunRefused, diagnosis.frames.recording.RecordingError
    """
    recording = read_recording(path)
    return RecordedRun(facts_of(path.stem, recording.meta, recording.frames), recording.frames)


def runs_in(folder: Path) -> Iterator[RecordedRun]:
    """Read the labelled runs of a folder, one at a time.

    Raises      RunRefused, diagnosis.frames.recording.RecordingError
    """
    yield from map(read_run, labelled_paths(folder))
