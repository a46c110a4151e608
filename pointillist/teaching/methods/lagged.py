"""Lagged cross-correlation, as host-side telemetry does it: which signal moved as the steps did.

Steps and host signals in bins of 100 ms, the last ten seconds of both; the cause is that of the
signal with the strongest correlation at a lag of up to a second. Of signals by cgroup there are no
fine bins, so this method sees the host's alone, as the published one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.frames.signals import FINE
from pointillist.teaching.account import Account, Spell
from pointillist.teaching.tracks import Track

from .cause_attribution import cause_of, ranked
from .deviations import SIGMAS, deviations
from .method_port import Prepared, said_from
from .spells import spells_of

BINS: Final = 100
LAGS: Final = range(-10, 11)
LEAST: Final = 0.3
"""Correlation from which a signal is suspected."""
FINE_CAUSES: Final = tuple(cause_of(f"host.{name}") for name in FINE)


class LaggedCorrelation:
    """3-sigma of the steps finds a spike, correlation its cause."""

    name = "lagged cross-correlation"

    def fit(self, runs: Sequence[Prepared]) -> None:
        """Learn nothing: its limits are the published ones."""

    def account(self, run: Prepared) -> Account:
        """See `Method.account`."""
        return Account(tuple(spell for track in run.tracks for spell in self._spells(track)))

    def _spells(self, track: Track) -> list[Spell]:
        tail, _ = deviations(track, robust=False)
        latency = _carried(track.fine_tail.ravel())
        signals = track.fine.transpose(1, 0, 2).reshape(track.fine.shape[1], -1)
        return spells_of(
            track,
            np.nan_to_num(tail) > SIGMAS,
            lambda number: said_from(
                ranked(strongest(latency, signals, 10 * (number + 1)), LEAST, FINE_CAUSES),
                int(track.at_ns[number]),
                float("nan"),
            ),
        )


def strongest(
    latency: NDArray[np.float64], signals: NDArray[np.float64], until: int
) -> NDArray[np.float64]:
    """Give each signal's largest correlation with the latency over lags.

    latency    float64[bins]
    signals    float64[signals, bins]
    until      bin after the newest
    Returns    float64[signals]; a signal that did not move has none: 0
    """
    since = max(0, until - BINS)
    return np.array([_best(latency[since:until], one[since:until]) for one in signals])


def _best(latency: NDArray[np.float64], signal: NDArray[np.float64]) -> float:
    found = [_correlation(*_shifted(latency, signal, lag)) for lag in LAGS]
    return max(found)


def _shifted(
    latency: NDArray[np.float64], signal: NDArray[np.float64], lag: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A positive lag: the signal came first."""
    if lag > 0:
        return latency[lag:], signal[:-lag]
    return (latency[:lag], signal[-lag:]) if lag else (latency, signal)


def _correlation(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    both = np.isfinite(one) & np.isfinite(other)
    if both.sum() < BINS // 4:
        return 0.0
    one, other = one[both] - one[both].mean(), other[both] - other[both].mean()
    size = float(np.sqrt((one @ one) * (other @ other)))
    return float(one @ other) / size if size > 0 else 0.0


def _carried(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A bin in which no step ended carries the last one's value."""
    places = np.where(np.isfinite(values), np.arange(values.size), -1)
    last = np.maximum.accumulate(places)
    return np.where(last >= 0, values[np.maximum(last, 0)], np.nan)
