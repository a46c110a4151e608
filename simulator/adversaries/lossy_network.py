"""A network, clocks and a Helper that fail: what is lost, and that nothing false is released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from aggregator.protocol.interfaces import BatchReply, HelperPort, HelperStatus, HelperUnavailable
from aggregator.protocol.interfaces import ReleaseReply as Reply
from simulator.engine.exact import ExactParties
from simulator.engine.interface import Settled

from .cohort import SMALL, START_S, WAITING, WINDOW_S, Cohort, CohortPlan, honest_rows

FAULTS: Final = (
    "none", "duplicates", "reordering", "helper_loss", "mass_restart", "clock_skew",
    "ledger_set_back", "dropout",
)  # fmt: skip
_HELPER_BACK_S: Final = 2 * WINDOW_S
"""After a window's end; the next window still waits for its reports then."""


@dataclass(frozen=True, slots=True)
class FaultResult:
    """What a fault of a given size did to a few windows.

    size        share of the reports, hosts or windows that it strikes; seconds for clock_skew
    windows     played; released: of those
    sent        reports that hosts sent once; in_releases: those that are in a release
    true_sums   every release is exactly the sum of the accepted hosts' vectors
    """

    fault: str
    size: float
    windows: int
    released: int
    sent: int
    in_releases: int
    true_sums: bool
    refused: Mapping[str, int]
    reasons: Mapping[str, int]

    @property
    def reports_released_percent(self) -> float:
        return 100 * self.in_releases / self.sent if self.sent else 0.0


def face(fault: str, size: float, windows: int = 4, plan: CohortPlan = SMALL) -> FaultResult:
    """Let one of FAULTS strike a cohort for a few windows."""
    if fault not in FAULTS or size < 0:
        raise ValueError(f"expected one of {', '.join(FAULTS)} of at least 0, got {fault}, {size}")
    rng = np.random.default_rng(plan.seed)
    away = _Away(size if fault == "helper_loss" else 0.0, rng)
    with Cohort(plan, away.between) as cohort:
        dead: set[int] = set()
        found = [_window(cohort, fault, size, number, rng, away, dead) for number in range(windows)]
        given_up = cohort.given_up()
    refused: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for _, settled, _ in found:
        refused.update(settled.refused)
        reason = settled.reason
        if reason == WAITING:
            reason = given_up.get(settled.start, WAITING)
        if reason:
            reasons[reason] += 1
    return FaultResult(
        fault,
        size,
        windows,
        sum(settled.released is not None for _, settled, _ in found),
        sum(sent for sent, _, _ in found),
        sum(settled.n for _, settled, _ in found),
        all(true for _, _, true in found),
        dict(refused),
        dict(reasons),
    )


def _window(
    cohort: Cohort,
    fault: str,
    size: float,
    number: int,
    rng: np.random.Generator,
    away: _Away,
    dead: set[int],
) -> tuple[int, Settled, bool]:
    """Play one window: reports sent, what came of it, and whether its sum is the true one."""
    window_s, hosts = START_S + number * WINDOW_S, cohort.plan.hosts
    vectors = cohort.encode(honest_rows(cohort, hosts, cohort.plan.seed + number))
    vectors += cohort.noise(hosts)
    up, good = np.ones((2, hosts), dtype=np.bool_)  # good: to be accepted
    struck = rng.permutation(hosts)[: round(min(size, 1.0) * hosts)]
    end_s = window_s + WINDOW_S
    if fault == "dropout":
        up[struck] = good[struck] = False
    elif fault == "mass_restart":
        cohort.restart(struck.tolist(), end_s)
    elif fault == "clock_skew":
        cohort.restart(range(hosts // 10), end_s, skew_s=round(size))
        # Sealed under an epoch that begins after the window's lateness has ended.
        good[: hosts // 10] = size <= cohort.task.lateness_s
    elif fault == "ledger_set_back" and number == 1:
        cohort.restart(struck.tolist(), end_s, ledger_back=2)
        dead.update(struck.tolist())
    good[list(dead)] = False
    reports = cohort.seal(vectors[up], window_s, np.flatnonzero(up).tolist())
    if fault == "reordering":
        reports = [reports[i] for i in rng.permutation(len(reports))]
    cohort.send(reports)
    if fault == "duplicates":
        cohort.send([report for report in reports if rng.random() < size])
    away.begin_window()
    settled = cohort.settle(window_s)
    if settled.released is None and away.lost:
        away.lost = False
        # It comes back: the batch was kept, and is asked for again.
        late = cohort.settle(window_s, end_s + _HELPER_BACK_S)
        settled = replace(late, refused=settled.refused)
    true = settled.released is None or np.array_equal(settled.released, vectors[good].sum(axis=0))
    return len(reports), settled, true


class _Away:
    """A Helper that is away in a share of the windows."""

    def __init__(self, share: float, rng: np.random.Generator) -> None:
        self._share, self._rng = share, rng
        self.lost = False
        self._inner: HelperPort

    def between(self, _parties: ExactParties) -> Callable[[HelperPort], HelperPort]:

        def wrap(inner: HelperPort) -> HelperPort:
            self._inner = inner
            return self

        return wrap

    def begin_window(self) -> None:
        self.lost = bool(self._rng.random() < self._share)

    def _there(self) -> HelperPort:
        if self.lost:
            raise HelperUnavailable("the Helper is away")
        return self._inner

    def submit_epochs(self, epochs: Sequence[bytes]) -> None:
        self._there().submit_epochs(epochs)

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        return self._there().submit_batch(signed_batch, epochs_complete=epochs_complete)

    def submit_release(self, entry: bytes, vector: bytes) -> Reply:
        return self._there().submit_release(entry, vector)

    def status(self) -> HelperStatus:
        return self._there().status()
