"""What diagnosis said of a run beside the truth: an outcome for each fault, alarms without one.

No point adjustment: a right second inside a fault makes no other second right. A fault's answer is
what was said last of the spikes that began within it; nothing said is a miss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from diagnosis.detect.findings import Cause, Diagnosis, Finding, SpikeBegan, SpikeEnded

from .runs import RECOVERY_NS, Episode, RecordedRun, RunKind

SETTLE_NS: Final = 60_000_000_000
"""A spike that goes on is counted by what stands so long after it became an incident."""
EARLY_NS: Final = 1_000_000_000
"""A spike's first step may have begun before its fault is known to have started."""
SECOND_NS: Final = 1_000_000_000
STOLEN_PERCENT: Final = 2.0
"""Of all CPU time, in a second about the alarm."""
_STEAL: Final = "steal_percent"


@dataclass(frozen=True, slots=True)
class Said:
    """A cause as it was known from `at_ns` on, and its runner-up, None where there is none."""

    at_ns: int
    cause: Cause
    second: Cause | None = None
    incident: bool = False


@dataclass(frozen=True, slots=True)
class Spell:
    """One spike of one subject, as diagnosis saw it; ended_ns None: to the end of the run."""

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


def spells_of(findings: Iterable[Finding]) -> list[Spell]:
    """Gather a diagnoser's findings, in order, into spells, ascending by when they were known."""
    open_: dict[tuple[str, int], SpikeBegan] = {}
    said: dict[tuple[str, int], list[Said]] = {}
    spells: list[Spell] = []
    for finding in findings:
        match finding:
            case SpikeBegan():
                open_[finding.subject, finding.onset_ns] = finding
                said.setdefault((finding.subject, finding.onset_ns), [])
            case Diagnosis():
                others = [cause for cause, _ in finding.ranked if cause != finding.cause]
                second = others[0] if others else None
                word = Said(finding.at_ns, finding.cause, second, finding.incident)
                said.setdefault((finding.subject, finding.onset_ns), []).append(word)
            case SpikeEnded():
                key = finding.subject, finding.onset_ns
                began = open_.pop(key, None)
                if began is not None:
                    spells.append(_spell(began, finding.ended_ns, said.pop(key, [])))
    spells += [_spell(began, None, said.get(key, [])) for key, began in open_.items()]
    return sorted(spells, key=lambda spell: spell.known_ns)


def _spell(began: SpikeBegan, ended_ns: int | None, said: list[Said]) -> Spell:
    return Spell(began.subject, began.onset_ns, began.at_ns, ended_ns, tuple(said))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one episode.

    answer     None: missed
    second     the runner-up beside it
    detect_s   from impact to the first word of a spike; None: missed, or no impact
    cause_s    from impact to the right cause, if it then stood to the end of the fault
    incident   the cause that would enter the weekly count
    by_second  answers of the seconds under impact, None for seconds without one
    """

    episode: Episode
    answer: Cause | None
    second: Cause | None
    detect_s: float | None
    cause_s: float | None
    incident: Cause | None
    by_second: Counter[Cause | None]

    @property
    def right(self) -> bool:
        return self.answer in self.episode.causes


@dataclass(frozen=True, slots=True)
class Alarm:
    """A spike where there was no fault; stolen: by the hypervisor, which took CPU time."""

    run: str
    subject: str
    at_ns: int
    cause: Cause | None
    incident: Cause | None
    stolen: bool


@dataclass(frozen=True, slots=True)
class Judged:
    run: str
    workload: str
    kind: RunKind
    worker_hours: float
    outcomes: tuple[Outcome, ...]
    alarms: tuple[Alarm, ...]

    @property
    def calm(self) -> bool:
        return self.kind in {RunKind.FAULT_FREE, RunKind.HARD_NEGATIVE}

    @property
    def quiet(self) -> bool:
        return self.kind is RunKind.FAULT_FREE


def judge(run: RecordedRun, truth: Sequence[Episode], spells: Sequence[Spell]) -> Judged:
    """Compare what diagnosis said of a run with its episodes."""
    return Judged(
        run=run.facts.name,
        workload=run.facts.workload,
        kind=run.facts.kind,
        worker_hours=run.worker_hours,
        outcomes=tuple(_outcome(episode, spells) for episode in truth),
        alarms=tuple(
            Alarm(
                run.facts.name,
                spell.subject,
                spell.known_ns,
                spell.said[-1].cause if spell.said else None,
                spell.incident.cause if spell.incident else None,
                _stolen(run, spell),
            )
            for spell in spells
            if spell.subject in run.facts.subjects
            and spell.known_ns > run.facts.calm_from_ns
            and not any(_of(spell, episode, RECOVERY_NS) for episode in truth)
        ),
    )


def _stolen(run: RecordedRun, spell: Spell) -> bool:
    since_ns = spell.onset_ns - SECOND_NS
    return any(
        frame.host.get(_STEAL, 0.0) >= STOLEN_PERCENT
        for frame in run.frames
        if since_ns <= frame.boottime_ns <= spell.known_ns
    )


def _of(spell: Spell, episode: Episode, after_ns: int = 0) -> bool:
    until = episode.end_ns + after_ns
    within = episode.start_ns - EARLY_NS <= spell.onset_ns and spell.known_ns <= until
    return within and spell.subject == episode.subject


def _outcome(episode: Episode, all_spells: Sequence[Spell]) -> Outcome:
    spells = [candidate for candidate in all_spells if _of(candidate, episode)]
    said = [word for spell in spells for word in spell.said if word.at_ns <= episode.end_ns]
    last = said[-1] if said else None
    counted = next(
        (candidate.incident for candidate in spells if candidate.incident is not None), None
    )
    onset = episode.onset_ns
    known = min((candidate.known_ns for candidate in spells), default=None)
    return Outcome(
        episode=episode,
        answer=last.cause if last else None,
        second=last.second if last else None,
        detect_s=_since(onset, known),
        cause_s=_since(onset, _right_since(said, episode)),
        incident=counted.cause if counted else None,
        by_second=_by_second(episode, spells),
    )


def _since(onset_ns: int | None, at_ns: int | None) -> float | None:
    """Seconds from the impact; what is said before it took no time."""
    return None if onset_ns is None or at_ns is None else max(0.0, (at_ns - onset_ns) / 1e9)


def _right_since(said: Sequence[Said], episode: Episode) -> int | None:
    since = None
    for word in said:
        if word.cause not in episode.causes:
            since = None
        elif since is None:
            since = word.at_ns
    return since


def _by_second(episode: Episode, spells: Sequence[Spell]) -> Counter[Cause | None]:
    answers: Counter[Cause | None] = Counter()
    if episode.onset_ns is None:
        return answers
    for at_ns in range(episode.onset_ns + SECOND_NS, episode.end_ns + 1, SECOND_NS):
        standing = [said for spell in spells if (said := spell.standing(at_ns)) is not None]
        answers[standing[-1].cause if standing else None] += 1
    return answers
