"""3-sigma, MAD and lagged correlation: a spike where the longest step leaves its recent past.

Lagged cross-correlation is as host-side telemetry does it: which signal moved as the steps did.
Steps and host signals in bins of 100 ms, the last ten seconds of both; the cause is that of the
signal with the strongest correlation at a lag of up to a second. Of signals by cgroup there are no
fine bins, so this method sees the host's alone, as the published one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.detect.channels import CHANNELS
from diagnosis.frames.signals import FINE
from pointillist.teaching.account import Account, Spell
from pointillist.teaching.method_port import Prepared, Track, said_from

from .spike_attribution import cause_of, ranked, spells_of

FLOORS: Final = np.array([channel.floor for channel in CHANNELS], np.float64)
SIGMAS: Final = 3.0
WINDOW_S: Final = 30
HOLD_BACK_S: Final = 3
LEAST_S: Final = 8
NORMAL: Final = 1.4826
LEAST_SHARE: Final = 0.05
"""A spread below this share of the middle is taken for it: counters may stand still."""


def deviations(track: Track, robust: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Measure a track by its own recent past.

    robust     median and MAD in place of mean and standard deviation
    Returns    float64[n] of the longest step and float64[n, channels], in spreads; NaN: unknown

    Seconds with a long step are no part of the past that later ones are measured by, up to half a
    minute of them: else a fault would be usual after a few seconds.
    """
    table = np.column_stack([track.tail_ms, track.channels])
    floors = np.concatenate([[1e-3], FLOORS])
    away = np.full(table.shape, np.nan)
    usual: list[int] = []
    strange = 0
    for number in range(len(table)):
        if len(usual) >= LEAST_S:
            away[number] = _away(table[usual[-WINDOW_S:]], table[number], floors, robust)
        held = number - HOLD_BACK_S
        long = held >= 0 and away[held, 0] > SIGMAS
        strange = strange + 1 if long else 0
        if held >= 0 and (not long or strange > WINDOW_S):
            usual.append(held)
    return away[:, 0], away[:, 1:]


def _away(
    past: NDArray[np.float64], now: NDArray[np.float64], floors: NDArray[np.float64], robust: bool
) -> NDArray[np.float64]:
    """Measure one second by those before it, float64[columns]."""
    known = np.isfinite(past).sum(axis=0) >= 3
    filled = np.where(known, past, 0.0)
    if robust:
        middle = _median(filled)
        spread = NORMAL * _median(np.abs(filled - middle))
    else:
        middle, spread = np.nanmean(filled, axis=0), np.nanstd(filled, axis=0)
    least = np.maximum(np.maximum(spread, floors), LEAST_SHARE * np.abs(middle))
    return np.where(known, (now - middle) / least, np.nan)


def _median(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give each column's median, float64[columns]; NaN is left out, and no column is all NaN.

    `np.nanmedian` does it by masked arrays, which for some thirty rows take ten times as long.
    """
    ordered = np.sort(values, axis=0)
    count = np.count_nonzero(~np.isnan(values), axis=0)
    columns = np.arange(values.shape[1])
    below, above = ordered[(count - 1) // 2, columns], ordered[count // 2, columns]
    return np.asarray((below + above) / 2)


class Deviations:
    """Both methods; they differ in how the past is summed up."""

    def __init__(self, robust: bool) -> None:
        self.name = "MAD" if robust else "3-sigma"
        self._robust = robust

    def fit(self, runs: Sequence[Prepared]) -> None:
        """Learn nothing: three spreads, by definition."""

    def account(self, run: Prepared) -> Account:
        """See `Method.account`."""
        spells = [spell for track in run.tracks for spell in self._spells(track)]
        return Account(tuple(spells))

    def _spells(self, track: Track) -> list[Spell]:
        tail, signals = deviations(track, self._robust)
        strengths = np.nan_to_num(signals)
        return spells_of(
            track,
            np.nan_to_num(tail) > SIGMAS,
            lambda number: said_from(
                ranked(strengths[number], SIGMAS), int(track.at_ns[number]), float("nan")
            ),
        )


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
    return np.array([_best(latency[since:until], signal[since:until]) for signal in signals])


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


def _correlation(latency: NDArray[np.float64], signal: NDArray[np.float64]) -> float:
    both = np.isfinite(latency) & np.isfinite(signal)
    if both.sum() < BINS // 4:
        return 0.0
    latency, signal = latency[both] - latency[both].mean(), signal[both] - signal[both].mean()
    size = float(np.sqrt((latency @ latency) * (signal @ signal)))
    return float(latency @ signal) / size if size > 0 else 0.0


def _carried(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A bin in which no step ended carries the last one's value."""
    places = np.where(np.isfinite(values), np.arange(values.size), -1)
    last = np.maximum.accumulate(places)
    return np.where(last >= 0, values[np.maximum(last, 0)], np.nan)
