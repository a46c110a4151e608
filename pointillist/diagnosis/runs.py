"""A recorded run and what is known of it: workload, faults, seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from edge_agent.diagnosis.findings import Cause
from edge_agent.frames.frame import Frame, Subject

INTENSITIES: Final = ("low", "middle", "high")


class RunRefused(ValueError):
    """What is said of a run cannot be used; the message names the field."""


class Kind(StrEnum):
    """What happens in a run."""

    FAULT = "fault"
    FAULT_FREE = "fault_free"
    HARD_NEGATIVE = "hard_negative"
    OVERLAP = "overlap"


@dataclass(frozen=True, slots=True)
class Fault:
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
    calm_from_ns end of the warm-up
    subjects     keys of the watched subjects: spikes of others are not counted
    workers      pinned workers, at most one a core
    """

    name: str
    kind: Kind
    workload: str
    intensity: str
    seed: int
    negative: str
    rising: bool
    faults: tuple[Fault, ...]
    calm_from_ns: int
    subjects: tuple[str, ...]
    workers: int

    @property
    def injectors(self) -> tuple[str, ...]:
        """Names of the injectors at work, in order."""
        return tuple(fault.injector for fault in self.faults)


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One recording."""

    facts: Facts
    frames: tuple[Frame, ...]

    @property
    def watched_s(self) -> float:
        """Seconds recorded after the warm-up."""
        calm = self.facts.calm_from_ns
        return sum(one.span_ns for one in self.frames if one.boottime_ns > calm) / 1e9

    @property
    def worker_hours(self) -> float:
        """Hours of one worker that were watched."""
        return self.facts.workers * self.watched_s / 3600

    def without_steps(self) -> Run:
        """The same run where nothing marks a step: its subjects have their rhythm alone."""
        return Run(self.facts, tuple(_rhythm_only(frame) for frame in self.frames))


def _rhythm_only(frame: Frame) -> Frame:
    bare = {key: replace(one, steps=None) for key, one in frame.subjects.items()}
    return replace(frame, subjects=bare)


def facts_of(name: str, meta: Mapping[str, Any], frames: Iterable[Frame]) -> Facts:
    """Read what a recording says of itself.

    Raises      RunRefused when a field is missing or of another kind
    """
    faults = tuple(_fault(name, one) for one in _list(name, meta, "faults"))
    seen: dict[str, Subject] = {}
    for frame in frames:
        seen.update(frame.subjects)
    named = tuple(str(one) for one in _list(name, meta, "subjects")) or tuple(sorted(seen))
    negative = str(meta.get("negative", ""))
    return Facts(
        name=name,
        kind=_kind(name, meta, faults, negative),
        workload=_text(name, meta, "workload"),
        intensity=_intensity(name, meta.get("intensity", "")),
        seed=_whole(name, meta, "seed"),
        negative=negative,
        rising=bool(meta.get("ramp", False)),
        faults=faults,
        calm_from_ns=_whole(name, meta, "warm_up_end_ns"),
        subjects=named,
        workers=max(1, int(meta.get("workers", 1))),
    )


def _kind(name: str, meta: Mapping[str, Any], faults: tuple[Fault, ...], negative: str) -> Kind:
    told = meta.get("kind")
    if told is not None:
        try:
            return Kind(str(told))
        except ValueError:
            raise RunRefused(f"{name}: kind: expected one of {list(Kind)}, got {told!r}") from None
    if len(faults) > 1:
        return Kind.OVERLAP
    if faults:
        return Kind.FAULT
    return Kind.HARD_NEGATIVE if negative else Kind.FAULT_FREE


def _fault(name: str, told: Any) -> Fault:
    if not isinstance(told, Mapping):
        raise RunRefused(f"{name}: faults: expected tables, got {type(told).__name__}")
    try:
        cause = Cause(str(told.get("cause")))
    except ValueError:
        raise RunRefused(
            f"{name}: faults.cause: expected a cause, got {told.get('cause')!r}"
        ) from None
    start, end = _whole(name, told, "start_ns"), _whole(name, told, "end_ns")
    if end <= start:
        raise RunRefused(f"{name}: faults: expected an end after {start}, got {end}")
    return Fault(cause, str(told.get("injector", "")), start, end)


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
