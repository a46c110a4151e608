"""One pass over a run's frames, from which every method is then compared without reading again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from diagnosis.detect.baseline import NO_LAGS, FineHistory
from diagnosis.detect.channels import Floats, Readings
from diagnosis.detect.detection_settings import DetectionSettings
from diagnosis.detect.diagnoser import Diagnoser, Ruler
from diagnosis.detect.features import SubjectSignals, vector_of
from diagnosis.detect.findings import Cause, Finding, SpikeBegan, SpikeEnded
from diagnosis.detect.model import Model
from diagnosis.detect.tail_detector import TailDetector
from diagnosis.frames.frame import Frame

from .account import Account, account_of
from .fault_episodes import Episode, episodes
from .method_port import Example, Prepared, Seen, tracks_of
from .recorded_runs import RecordedRun, RunKind

_NS: Final = 1_000_000_000
_RECOVERY_NS: Final = 10 * _NS


@dataclass(frozen=True, slots=True, eq=False)
class VectorRow:
    """One second of one subject inside a span.

    vector   float64[FEATURE_NAMES], NaN where missing
    """

    subject: str
    at_ns: int
    onset_ns: int
    vector: Floats


class _Material:
    """One subject: learns outside of spans only."""

    def __init__(self, settings: DetectionSettings) -> None:
        self.tail = TailDetector(settings)
        self.signals = SubjectSignals(settings)


def labelled_vectors(
    frames: Iterable[Frame],
    spans_ns: Sequence[tuple[int, int]],
    source: Ruler = "measured",
    settings: DetectionSettings = DetectionSettings(),  # noqa: B008 -- frozen
) -> list[VectorRow]:
    """Give a vector per subject and second inside of spans; baselines are learned outside of them.

    spans_ns   [start, end) by CLOCK_BOOTTIME; a span's start stands for the spike's onset
    """
    fine = FineHistory()
    subjects: dict[str, _Material] = {}
    rows: list[VectorRow] = []
    for frame in frames:
        readings = Readings.of(frame)
        fine.take(frame)
        at_ns = frame.boottime_ns
        inside = next((s for s in spans_ns if s[0] < at_ns <= s[1] + frame.span_ns), None)
        near = any(start < at_ns <= end + _RECOVERY_NS for start, end in spans_ns)
        for key, subject in frame.subjects.items():
            material = subjects.setdefault(key, _Material(settings))
            measured = subject.steps if source == "measured" else None
            steps = measured if measured is not None else subject.rhythm
            material.tail.take(steps, at_ns, frame.span_ns / _NS)
            material.signals.take(readings.of_subject(subject), at_ns)
            if not near:
                material.tail.learn()
                material.signals.learn()
            if inside is not None:
                onset_ns = inside[0]
                ratios = material.tail.ratios(onset_ns)
                lags = fine.lags_s(onset_ns) if at_ns - onset_ns < 20 * _NS else NO_LAGS
                vector = vector_of(material.signals, onset_ns, ratios, lags)
                rows.append(VectorRow(key, at_ns, onset_ns, vector))
    return rows


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
    for finding in found:
        if isinstance(finding, SpikeBegan):
            onsets[finding.subject] = finding.onset_ns
        elif isinstance(finding, SpikeEnded):
            onsets.pop(finding.subject, None)


def _examples(run: RecordedRun, truth: Iterable[Episode], rhythm: bool) -> list[Example]:
    """Label seconds under impact: before it, the subject feels nothing that could be learned."""
    if run.facts.kind is not RunKind.FAULT:
        return []
    spans = [(fault.start_ns, fault.end_ns) for fault in run.facts.faults]
    rows = labelled_vectors(run.frames, spans, source=_source(rhythm))
    felt = {
        (episode.subject, episode.onset_ns, episode.end_ns, episode.causes[0])
        for episode in truth
        if episode.impact
    }
    return [
        Example(run.facts.name, row.at_ns, cause, row.vector)
        for row in rows
        for subject, onset_ns, end_ns, cause in felt
        if row.subject == subject and onset_ns is not None and onset_ns <= row.at_ns <= end_ns
        if cause is not Cause.UNKNOWN
    ]
