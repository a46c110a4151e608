"""What must hold whatever fault a fleet went through: nothing lost unsaid, nothing counted twice.

Every sealed report is in exactly one release, or in none with a counted reason; what was released,
less the true steps, is the noise that was drawn; ledgers hold at least what was released; and both
parties' transcripts agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.directory import PinnedParties
from aggregator.transcripts.transcript import read_transcript
from aggregator.transcripts.transcript_check import Transcript, verify_transcripts
from edge_agent.windows.encode import encode_rows
from tests.fault_notes import note_verdict

REPEATS = ("duplicate", "window_released")
"""Reasons that a second copy of a report that counts is refused for: they explain no loss."""


class EncodedSteps:
    """What hosts truly counted: the rows as they were rounded, before noise is added."""

    def __init__(self) -> None:
        self.last = np.zeros((0, 0), dtype=np.int64)

    def encode(self, *given: Any) -> NDArray[np.int64]:
        steps = encode_rows(*given)
        self.last = steps.copy()
        return steps


@dataclass(frozen=True, slots=True, eq=False)
class SealedReport:
    """One report as its host sealed it.

    true    int64[d], steps, check words included
    noise   int64[d], steps, as drawn
    gone    why the host itself gave it up; "" where the log has it
    waits   it is still in the host's spool
    """

    report_id: bytes
    host: bytes
    window: int
    true: NDArray[np.int64]
    noise: NDArray[np.int64]
    gone: str = ""
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a fleet left behind.

    sealed     every report, of every host
    spent      (host, window) of every entry in the hosts' ledgers
    stored     (window, vector) of every write of the Leader's store, repeated ones too
    leader, helper  their transcripts; a Leader's second one is told apart
    refused    reason -> reports that the Leader refused, over all its lives
    left_out   reason -> reports that a release named as left out
    """

    sealed: Sequence[SealedReport]
    spent: frozenset[tuple[bytes, int]]
    stored: Sequence[tuple[int, tuple[int, ...]]]
    leader: Path
    helper: Path
    parties: PinnedParties
    refused: Mapping[str, int] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Verdict:
    """What came of it; sound when `problems` is empty.

    released        reports in a release
    lost            reason -> sealed reports in no release
    windows_lost    windows with reports that neither were released nor have a reason
    """

    windows: int = 0
    released: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    windows_lost: int = 0
    reports_lost_or_double: int = 0
    problems: list[str] = field(default_factory=list)


def judge(found: Evidence) -> Verdict:
    ours, theirs = read_transcript(found.leader), read_transcript(found.helper)
    verdict = Verdict(windows=len(ours.links))
    agreed = verify_transcripts(ours, theirs, found.parties)
    verdict.problems += agreed.problems
    if agreed.unsigned:
        verdict.problems.append(f"{agreed.unsigned} releases lack the Helper's signature")
    by_id = {report.report_id: report for report in found.sealed}
    if len(by_id) != len(found.sealed):
        verdict.problems.append("two sealed reports have one id")
    used = _reports_of_releases(verdict, ours, by_id)
    _true_sums(verdict, found, used)
    _ledgers(verdict, found, used)
    _losses(verdict, found, ours, used)
    note_verdict(verdict.windows, verdict.windows_lost, verdict.reports_lost_or_double)
    return verdict


def _reports_of_releases(
    verdict: Verdict, ours: Transcript, by_id: Mapping[bytes, SealedReport]
) -> dict[int, list[SealedReport]]:
    """Window -> the reports in its release; one in two, or one that nobody sealed, is told."""
    used: dict[int, list[SealedReport]] = {}
    seen: set[bytes] = set()
    for link in ours.links:
        ids = link.report_ids
        if ids is None or link.window in used:
            verdict.problems.append(f"window {link.window}: expected one release with its reports")
            continue
        doubles = len(ids & seen)
        strangers = len(ids - by_id.keys())
        if doubles or strangers:
            verdict.reports_lost_or_double += doubles
            verdict.problems.append(f"window {link.window}: {doubles} double, {strangers} unsealed")
        seen |= ids
        used[link.window] = [by_id[one] for one in sorted(ids & by_id.keys())]
        hosts = Counter(report.host for report in used[link.window])
        if hosts and max(hosts.values()) > 1:
            verdict.reports_lost_or_double += sum(hosts.values()) - len(hosts)
            verdict.problems.append(f"window {link.window}: a host counts twice")
        verdict.released += len(ids)
    return used


def _true_sums(
    verdict: Verdict, found: Evidence, used: Mapping[int, Sequence[SealedReport]]
) -> None:
    """What was released, less the true steps, is the noise that was drawn."""
    stored: dict[int, set[tuple[int, ...]]] = {}
    for window, vector in found.stored:
        stored.setdefault(window, set()).add(vector)
    if stored.keys() != used.keys():
        verdict.problems.append(
            f"the store has windows {sorted(stored)}, the transcripts {sorted(used)}"
        )
    for window in stored.keys() & used.keys():
        if len(stored[window]) > 1:
            verdict.problems.append(f"window {window}: stored with two vectors")
            continue
        (vector,) = stored[window]
        noise = np.array(vector, dtype=np.int64) - _sum(report.true for report in used[window])
        if not np.array_equal(noise, _sum(report.noise for report in used[window])):
            verdict.problems.append(f"window {window}: released less true is not the drawn noise")


def _sum(vectors: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.asarray(sum(vectors, np.int64(0)), dtype=np.int64)


def _ledgers(verdict: Verdict, found: Evidence, used: Mapping[int, Sequence[SealedReport]]) -> None:
    for window, reports in used.items():
        unpaid = sum((report.host, report.window) not in found.spent for report in reports)
        moved = sum(report.window != window for report in reports)
        if unpaid or moved:
            verdict.problems.append(f"window {window}: {unpaid} unpaid, {moved} of other windows")


def _losses(
    verdict: Verdict,
    found: Evidence,
    ours: Transcript,
    used: Mapping[int, Sequence[SealedReport]],
) -> None:
    """Each report in no release has a reason, its host's, its window's or the Leader's own."""
    suppressed = {window: reason for (_, _, window), reason in ours.suppressed.items()}
    counted = {report.report_id for reports in used.values() for report in reports}
    endless: set[int] = set()
    refused = 0
    for report in found.sealed:
        if report.report_id in counted:
            continue
        if report.gone:
            verdict.lost[report.gone] += 1
        elif report.waits:
            verdict.lost["waits"] += 1
            verdict.problems.append(f"window {report.window}: a report still waits on its host")
        elif report.window in suppressed:
            verdict.lost[suppressed[report.window]] += 1
        elif report.window in used:
            refused += 1
        else:
            endless.add(report.window)
    _refusals(verdict, found, refused)
    verdict.windows_lost = len(endless)
    if endless:
        verdict.problems.append(f"windows without an end: {sorted(endless)}")


def _refusals(verdict: Verdict, found: Evidence, refused: int) -> None:
    """Of reports that a release left out at least as many were refused with a reason."""
    reasons = Counter(found.refused) + Counter(found.left_out)
    explained = sum(count for reason, count in reasons.items() if reason not in REPEATS)
    verdict.lost["refused"] += min(refused, explained)
    verdict.lost += Counter()  # drops what is zero
    if refused > explained:
        verdict.reports_lost_or_double += refused - explained
        verdict.problems.append(f"{refused} reports left out, {explained} with a reason")
