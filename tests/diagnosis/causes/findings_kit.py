"""Findings of one spike after the other, as an agent's diagnosis gives them."""

from __future__ import annotations

from collectors.records.activity import StepSource
from diagnosis.detect.findings import (
    Cause,
    Diagnosis,
    Evidence,
    SpikeBegan,
    SpikeEnded,
    StepTimes,
)

S = 1_000_000_000
BEFORE, NOW = StepTimes(9.7, 13.0, 800), StepTimes(9.9, 27.5, 640)
EVIDENCE = Evidence("block_latency", "ms", 41.0, 1.5, 0.4, 90 * S, 120.0, "/system/backup")


def diagnosis(
    cause: Cause = Cause.DISK_IO,
    at_s: float = 112,
    onset_s: float = 100,
    incident: bool = True,
    subject: str = "/train/rank0",
) -> Diagnosis:
    return Diagnosis(
        subject,
        cause,
        0.91,
        ((cause, 0.91), (Cause.UNKNOWN, 0.09)),
        0.12,
        int(onset_s * S),
        int(at_s * S),
        StepSource.UPROBE,
        BEFORE,
        NOW,
        (EVIDENCE,),
        "causes 3 0123456789abcdef",
        incident=incident,
    )


def ended(last: Diagnosis | None, at_s: float = 130) -> SpikeEnded:
    if last is None:
        return SpikeEnded("/train/rank0", 100 * S, int(at_s * S), None)
    return SpikeEnded(last.subject, last.onset_ns, int(at_s * S), last)


def one_of_each() -> list[SpikeBegan | Diagnosis | SpikeEnded]:
    return [
        SpikeBegan("/train/rank0", 100 * S, 103 * S, StepSource.RHYTHM, BEFORE, NOW),
        diagnosis(),
        ended(diagnosis()),
        ended(None),
    ]
