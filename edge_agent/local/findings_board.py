"""What diagnosis holds at the moment, for `agent top`: spikes that stand, and the last warnings."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

from diagnosis.detect.findings import Diagnosis, Finding, SpikeBegan, SpikeEnded, Warned

from .diagnosis_words import (
    ADVICE,
    CAUSES,
    evidence_said,
    interferer,
    most_telling,
    said,
    steps_said,
)
from .rows import clean_name

MOST_SUBJECTS: Final = 64
WARNING_NS: Final = 30_000_000_000
"""So long an early warning is shown."""
OVER_NS: Final = 120_000_000_000
"""So long a spike that is over is shown."""
SHOWN_EVIDENCE: Final = 3


class FindingsBoard:
    """The latest finding of each subject."""

    def __init__(self) -> None:
        self._latest: OrderedDict[str, Finding] = OrderedDict()

    def add(self, finding: Finding) -> None:
        """Take a finding; a warning does not hide a spike that stands."""
        before = self._latest.get(finding.subject)
        if isinstance(finding, Warned) and isinstance(before, SpikeBegan | Diagnosis):
            return
        self._latest[finding.subject] = finding
        self._latest.move_to_end(finding.subject)
        if len(self._latest) > MOST_SUBJECTS:
            self._latest.popitem(last=False)

    def view(self, now_ns: int) -> list[dict[str, Any]]:
        """Give what is to be shown as JSON, the newest first."""
        return [
            _shown(one, now_ns)
            for one in reversed(self._latest.values())
            if not _is_old(one, now_ns)
        ]


def _is_old(one: Finding, now_ns: int) -> bool:
    if isinstance(one, Warned):
        return now_ns - one.at_ns > WARNING_NS
    return isinstance(one, SpikeEnded) and now_ns - one.ended_ns > OVER_NS


def _shown(one: Finding, now_ns: int) -> dict[str, Any]:
    since_ns = one.at_ns if isinstance(one, Warned) else one.onset_ns
    view: dict[str, Any] = {
        "subject": clean_name(one.subject),
        "state": _STATES[type(one)],
        "age_s": max(0, now_ns - since_ns) // 1_000_000_000,
        "cause": "",
        "said": clean_name(said(one)),
        "evidence": [],
    }
    standing = one.last if isinstance(one, SpikeEnded) else one
    if isinstance(standing, Diagnosis):
        view |= {
            "cause": standing.cause.value,
            "about": CAUSES[standing.cause],
            "who": clean_name(interferer(standing)),
            "advice": ADVICE[standing.cause],
            "confidence": standing.confidence,
            "incident": standing.incident,
            "steps": steps_said(standing.before, standing.now),
            "source": standing.source.value,
            "model": standing.model,
        }
    if isinstance(standing, Diagnosis | Warned):
        known = (interferer(standing),) if isinstance(standing, Diagnosis) else ()
        view["evidence"] = [
            clean_name(evidence_said(e, known))
            for e in most_telling(standing.evidence, SHOWN_EVIDENCE)
        ]
    return view


_STATES: Final = {
    Warned: "warning", SpikeBegan: "spike", Diagnosis: "spike", SpikeEnded: "over",
}  # fmt: skip
