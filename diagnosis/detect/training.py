"""Labelled vectors for training: from recorded frames and the spans of their faults."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from diagnosis.frames.frame import Frame

from .baseline import NO_LAGS, FineHistory
from .channels import Floats, Readings
from .detection_settings import DetectionSettings
from .diagnoser import Ruler
from .features import SubjectSignals, vector_of
from .tail_detector import TailDetector

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
