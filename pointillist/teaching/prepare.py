"""One pass over a run's frames, from which every method is then compared without reading again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Cause, Finding, SpikeBegan, SpikeEnded
from diagnosis.detect.model import Model
from diagnosis.detect.training import labelled_vectors

from .account import Account, account_of
from .fault_episodes import Episode, episodes
from .methods.method_port import Example, Prepared, Seen
from .recorded_runs import RecordedRun, RunKind
from .tracks import tracks_of

MEASURED: Final = "measured"
RHYTHM: Final = "rhythm"


def prepare(run: RecordedRun, rhythm: bool = False) -> Prepared:
    """Let the shipped detector see a run, second by second, and keep all that it saw.

    rhythm   steps are taken from the subjects' rhythm; the truth stays what probes measured
    """
    truth = tuple(episodes(run))
    findings, seen = _watch(run, rhythm)
    return Prepared(
        run=run,
        episodes=truth,
        tracks=tuple(tracks_of(run, rhythm)),
        rules=account_of(findings),
        seen=tuple(seen),
        examples=tuple(_examples(run, truth, rhythm)),
        rhythm=rhythm,
    )


def account_with(run: RecordedRun, model: Model | None, rhythm: bool = False) -> Account:
    """Let the shipped diagnoser judge a run with a model, exactly as an agent would."""
    diagnoser = Diagnoser(model=model, source=_source(rhythm))
    findings = [found for frame in run.frames for found in diagnoser.handle(frame)]
    return account_of(findings)


def _source(rhythm: bool) -> Literal["measured", "rhythm"]:
    return RHYTHM if rhythm else MEASURED


def _watch(run: RecordedRun, rhythm: bool) -> tuple[list[Finding], list[Seen]]:
    diagnoser = Diagnoser(source=_source(rhythm))
    findings: list[Finding] = []
    seen: list[Seen] = []
    onsets: dict[str, int] = {}
    for frame in run.frames:
        found = diagnoser.handle(frame)
        findings += found
        _follow(onsets, found)
        seen += [
            Seen(subject, onsets[subject], frame.boottime_ns, vector.copy())
            for subject, vector in diagnoser.vectors.items()
            if subject in onsets
        ]
    return findings, seen


def _follow(onsets: dict[str, int], found: Iterable[Finding]) -> None:
    for one in found:
        if isinstance(one, SpikeBegan):
            onsets[one.subject] = one.onset_ns
        elif isinstance(one, SpikeEnded):
            onsets.pop(one.subject, None)


def _examples(run: RecordedRun, truth: Iterable[Episode], rhythm: bool) -> list[Example]:
    """Label seconds under impact: before it, the subject feels nothing that could be learned."""
    if run.facts.kind is not RunKind.FAULT:
        return []
    spans = [(one.start_ns, one.end_ns) for one in run.facts.faults]
    rows = labelled_vectors(run.frames, spans, source=_source(rhythm))
    felt = {(one.subject, one.onset_ns, one.end_ns, one.causes[0]) for one in truth if one.impact}
    return [
        Example(run.facts.name, row.at_ns, cause, row.vector)
        for row in rows
        for subject, onset_ns, end_ns, cause in felt
        if row.subject == subject and onset_ns is not None and onset_ns <= row.at_ns <= end_ns
        if cause is not Cause.UNKNOWN
    ]
