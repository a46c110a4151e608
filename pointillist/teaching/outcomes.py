"""A method's account of a run beside the truth: an outcome for each fault, alarms without one.

No point adjustment: a right second inside a fault makes no other second right. A fault's answer is
what the method said last of the spikes that began within it; nothing said is a miss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from diagnosis.detect.findings import Cause

from .account import Account, Said, Spell
from .fault_episodes import RECOVERY_NS, Episode
from .recorded_runs import RecordedRun, RunKind

EARLY_NS: Final = 1_000_000_000
"""A spike's first step may have begun before its fault is known to have started."""
WARNED_WITHIN_NS: Final = 60_000_000_000
"""A warning is right when an impact follows within this time."""
SECOND_NS: Final = 1_000_000_000
STOLEN_PERCENT: Final = 2.0
"""Of all CPU time, in a second about the alarm."""
_STEAL: Final = "steal_percent"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one episode.

    answer     None: missed
    second     the runner-up beside it
    detect_s   from impact to the first word of a spike; None: missed, or no impact
    cause_s    from impact to the right cause, if it then stood to the end of the fault
    unlike     mean over what was said; NaN where the method cannot tell
    incident   the cause that would enter the weekly count
    lead_s     from the first warning to the impact; None: not warned
    by_second  answers of the seconds under impact, None for seconds without one
    """

    episode: Episode
    answer: Cause | None
    second: Cause | None
    detect_s: float | None
    cause_s: float | None
    unlike: float
    incident: Cause | None
    lead_s: float | None
    by_second: Counter[Cause | None]

    @property
    def right(self) -> bool:
        """Whether the answer is a true cause."""
        return self.answer in self.episode.causes


@dataclass(frozen=True, slots=True)
class Alarm:
    """A spike where there was no fault.

    stolen   the hypervisor took CPU time then: the steps were slow, by nobody on the host
    """

    run: str
    subject: str
    at_ns: int
    cause: Cause | None
    incident: Cause | None
    stolen: bool


@dataclass(frozen=True, slots=True)
class Judged:
    """One run, judged.

    warnings_right   in a fault, before its impact; `warnings_wrong`: without a fault, or in one
                     that had none; later ones count for neither
    """

    run: str
    workload: str
    kind: RunKind
    worker_hours: float
    outcomes: tuple[Outcome, ...]
    alarms: tuple[Alarm, ...]
    warnings_right: int
    warnings_wrong: int

    @property
    def calm(self) -> bool:
        """Fault-free or hard negative: its hours count towards alarms a host-day."""
        return self.kind in {RunKind.FAULT_FREE, RunKind.HARD_NEGATIVE}

    @property
    def quiet(self) -> bool:
        """Fault-free: nothing at all was done."""
        return self.kind is RunKind.FAULT_FREE


def judge(run: RecordedRun, truth: Sequence[Episode], account: Account) -> Judged:
    """Compare what a method said of a run with the truth.

    truth   the run's episodes
    """
    watched = set(run.facts.subjects)
    right, wrong = _warnings(truth, account, watched)
    return Judged(
        run=run.facts.name,
        workload=run.facts.workload,
        kind=run.facts.kind,
        worker_hours=run.worker_hours,
        outcomes=tuple(_outcome(episode, account) for episode in truth),
        alarms=tuple(
            Alarm(
                run.facts.name,
                spell.subject,
                spell.known_ns,
                _last(spell),
                _incident(spell),
                _stolen(run, spell),
            )
            for spell in account.spells
            if spell.subject in watched
            and spell.known_ns > run.facts.calm_from_ns
            and not any(_of(spell, episode, RECOVERY_NS) for episode in truth)
        ),
        warnings_right=right,
        warnings_wrong=wrong,
    )


def _stolen(run: RecordedRun, spell: Spell) -> bool:
    since_ns = spell.onset_ns - SECOND_NS
    return any(
        frame.host.get(_STEAL, 0.0) >= STOLEN_PERCENT
        for frame in run.frames
        if since_ns <= frame.boottime_ns <= spell.known_ns
    )


def _of(spell: Spell, episode: Episode, after_ns: int = 0) -> bool:
    """Whether a spike began within an episode."""
    until = episode.end_ns + after_ns
    within = episode.start_ns - EARLY_NS <= spell.onset_ns and spell.known_ns <= until
    return within and spell.subject == episode.subject


def _outcome(episode: Episode, account: Account) -> Outcome:
    spells = [candidate for candidate in account.spells if _of(candidate, episode)]
    said = [word for spell in spells for word in spell.said if word.at_ns <= episode.end_ns]
    last = said[-1] if said else None
    counted = next(
        (candidate.incident for candidate in spells if candidate.incident is not None), None
    )
    unlikes = [word.unlike for word in said]
    onset = episode.onset_ns
    known = min((candidate.known_ns for candidate in spells), default=None)
    return Outcome(
        episode=episode,
        answer=last.cause if last else None,
        second=last.second if last else None,
        detect_s=_since(onset, known),
        cause_s=_since(onset, _right_since(said, episode)),
        unlike=sum(unlikes) / len(unlikes) if unlikes else float("nan"),
        incident=counted.cause if counted else None,
        lead_s=_lead(episode, account),
        by_second=_by_second(episode, spells),
    )


def _since(onset_ns: int | None, at_ns: int | None) -> float | None:
    """Seconds from the impact; a method that speaks before it took no time."""
    return None if onset_ns is None or at_ns is None else max(0.0, (at_ns - onset_ns) / 1e9)


def _right_since(said: Sequence[Said], episode: Episode) -> int | None:
    since = None
    for word in said:
        if word.cause not in episode.causes:
            since = None
        elif since is None:
            since = word.at_ns
    return since


def _lead(episode: Episode, account: Account) -> float | None:
    if episode.onset_ns is None:
        return None
    early = [
        warning.at_ns
        for warning in account.warnings
        if warning.subject == episode.subject
        and episode.start_ns <= warning.at_ns < episode.onset_ns
    ]
    return (episode.onset_ns - min(early)) / 1e9 if early else None


def _by_second(episode: Episode, spells: Sequence[Spell]) -> Counter[Cause | None]:
    answers: Counter[Cause | None] = Counter()
    if episode.onset_ns is None:
        return answers
    for at_ns in range(episode.onset_ns + SECOND_NS, episode.end_ns + 1, SECOND_NS):
        standing = [said for spell in spells if (said := spell.standing(at_ns)) is not None]
        answers[standing[-1].cause if standing else None] += 1
    return answers


def _warnings(truth: Sequence[Episode], account: Account, watched: set[str]) -> tuple[int, int]:
    right = wrong = 0
    for warning in account.warnings:
        of = [episode for episode in truth if episode.subject == warning.subject]
        if any(_ahead(episode, warning.at_ns) for episode in of):
            right += 1
        elif warning.subject in watched and not any(
            episode.start_ns <= warning.at_ns <= episode.end_ns + RECOVERY_NS and episode.impact
            for episode in of
        ):
            wrong += 1
    return right, wrong


def _ahead(episode: Episode, at_ns: int) -> bool:
    """Whether the fault was there and its impact to come."""
    onset_ns = episode.onset_ns
    return onset_ns is not None and (
        episode.start_ns <= at_ns < onset_ns <= at_ns + WARNED_WITHIN_NS
    )


def _last(spell: Spell) -> Cause | None:
    return spell.said[-1].cause if spell.said else None


def _incident(spell: Spell) -> Cause | None:
    return spell.incident.cause if spell.incident else None
