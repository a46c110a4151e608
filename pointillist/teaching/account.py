"""What a method said of a run: spikes with their causes over time, and warnings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from diagnosis.detect.findings import Cause, Diagnosis, Finding, SpikeBegan, SpikeEnded, Warned

SETTLE_NS: Final = 60_000_000_000
"""A spike that goes on is counted by what stands so long after it became an incident."""


@dataclass(frozen=True, slots=True)
class Said:
    """A cause as it was known from `at_ns` on.

    second   the runner-up, None where there is none
    unlike   how far from everything known, 0..1; NaN of a method that cannot tell
    """

    at_ns: int
    cause: Cause
    second: Cause | None = None
    unlike: float = float("nan")
    incident: bool = False


@dataclass(frozen=True, slots=True)
class Spell:
    """One spike of one subject, as a method saw it.

    onset_ns   its first step, as the method says; known_ns: when it said so
    ended_ns   None: to the end of the run
    said       ascending
    """

    subject: str
    onset_ns: int
    known_ns: int
    ended_ns: int | None
    said: tuple[Said, ...]

    def standing(self, at_ns: int) -> Said | None:
        """Return what stood at a moment; None before the first word and after the end."""
        if self.ended_ns is not None and at_ns > self.ended_ns:
            return None
        before = [word for word in self.said if word.at_ns <= at_ns]
        return before[-1] if before else None

    @property
    def incident(self) -> Said | None:
        """What enters the weekly count, if anything: what stood at the end, or a minute in."""
        first = next((word.at_ns for word in self.said if word.incident), None)
        if first is None:
            return None
        last = [word for word in self.said if word.at_ns <= first + SETTLE_NS][-1]
        return last if last.incident else None


@dataclass(frozen=True, slots=True)
class Announced:
    """A spike was announced."""

    subject: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Account:
    """All that a method said of one run."""

    spells: tuple[Spell, ...]
    warnings: tuple[Announced, ...] = ()


def account_of(findings: Iterable[Finding]) -> Account:
    """Gather a diagnoser's findings into spells.

    findings   in the order of their frames
    """
    open_: dict[tuple[str, int], SpikeBegan] = {}
    said: dict[tuple[str, int], list[Said]] = {}
    spells: list[Spell] = []
    warnings: list[Announced] = []
    for finding in findings:
        match finding:
            case Warned():
                warnings.append(Announced(finding.subject, finding.at_ns))
            case SpikeBegan():
                open_[finding.subject, finding.onset_ns] = finding
                said.setdefault((finding.subject, finding.onset_ns), [])
            case Diagnosis():
                said.setdefault((finding.subject, finding.onset_ns), []).append(_said(finding))
            case SpikeEnded():
                key = finding.subject, finding.onset_ns
                began = open_.pop(key, None)
                if began is not None:
                    spells.append(_spell(began, finding.ended_ns, said.pop(key, [])))
    spells += [_spell(began, None, said.get(key, [])) for key, began in open_.items()]
    return Account(tuple(sorted(spells, key=lambda spell: spell.known_ns)), tuple(warnings))


def _said(diagnosis: Diagnosis) -> Said:
    others = [cause for cause, _ in diagnosis.ranked if cause != diagnosis.cause]
    return Said(
        diagnosis.at_ns,
        diagnosis.cause,
        others[0] if others else None,
        diagnosis.unlike,
        diagnosis.incident,
    )


def _spell(began: SpikeBegan, ended_ns: int | None, said: list[Said]) -> Spell:
    return Spell(began.subject, began.onset_ns, began.at_ns, ended_ns, tuple(said))
