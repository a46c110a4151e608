"""Early warning: signals, or the steps themselves, that climb to where spikes come."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import log2
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .channels import INDEX, Floats
from .detection_settings import DetectionSettings
from .features import SubjectSignals

STILL_CLIMBING: Final = 0.6
"""Slope of the newer part over the whole one's: a step that was made once is no climb."""


def trend(
    seconds: NDArray[np.float64], rows: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Fit a line to each column of float64[seconds, n].

    Returns     slope a second, slope over its standard error, value at the end: float64[n] each
    """
    t = seconds - seconds.mean()
    middle = rows.mean(axis=0)
    squares = float((t * t).sum())
    slope = (t @ (rows - middle)) / squares
    left = rows - middle - t[:, None] * slope
    error = np.sqrt((left * left).sum(axis=0) / max(len(t) - 2, 1) / squares)
    sureness = slope / np.maximum(error, 1e-12)
    return slope, sureness, middle + t[-1] * slope


_UNKNOWN: Final = float("nan")
_FEWEST_STEPS: Final = 10
"""In a second: fewer have no 90th percentile."""
_SPAN_FRAMES: Final = 3
"""The newest ones are compared with those before, so that one jump is no climb."""
_MOST_GAPS: Final = 1.3
"""Times as long as it should be a window may be: longer, seconds are missing in it."""


@dataclass(frozen=True, slots=True)
class _Second:
    at_s: float
    risen_octaves: float


class StepClimb:
    """The 90th percentile of one subject's steps, second by second, beside the usual one.

    It moves before the 99th does: what slows every step a little slows none enough for a spike.
    """

    def __init__(self, settings: DetectionSettings) -> None:
        self._settings = settings
        self._seconds: deque[_Second] = deque(maxlen=settings.early_window_s)

    def take(self, duration_ns: NDArray[np.int64], usual_ns: float, at_s: float) -> None:
        """Add one frame's steps: int64[n]; `usual_ns` is their usual 90th percentile, or NaN."""
        if duration_ns.size < _FEWEST_STEPS or not usual_ns > 0:
            self._seconds.append(_Second(at_s, _UNKNOWN))
            return
        self._seconds.append(_Second(at_s, log2(np.quantile(duration_ns, 0.9) / usual_ns)))

    def forget(self) -> None:
        """Begin anew: a spike, or another phase."""
        self._seconds.clear()

    def expected_in_s(self) -> float | None:
        """Give the seconds until the percentile is 1.3 times the usual one; None: no climb."""
        settings = self._settings
        if len(self._seconds) < settings.early_window_s:
            return None
        seconds = np.array([second.at_s for second in self._seconds])
        risen = np.array([second.risen_octaves for second in self._seconds])
        gaps = seconds[-1] - seconds[0] > _MOST_GAPS * settings.early_window_s
        if (
            gaps
            or np.isnan(risen).any()
            or risen[-2 * _SPAN_FRAMES :].min() < settings.early_step_octaves
        ):
            return None
        slope, sureness, now = (float(x[0]) for x in trend(seconds, risen[:, None]))
        grown = _grown(risen) / _grown(seconds)
        if slope <= 0 or grown < STILL_CLIMBING * slope or sureness < settings.early_sureness:
            return None
        left_s = (log2(settings.tail_ratio) - now) / slope
        return left_s if 0 < left_s <= settings.early_horizon_s else None


def _grown(values: NDArray[np.float64]) -> float:
    """Mean of the newest frames less that of those before."""
    newest, before = values[-_SPAN_FRAMES:], values[-2 * _SPAN_FRAMES : -_SPAN_FRAMES]
    return float(newest.mean() - before.mean())


_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class Approach:
    """A signal on its way to its level; `channel` is None where it is the steps themselves."""

    channel: int | None
    expected_in_s: float


@dataclass(frozen=True, slots=True)
class _Level:
    """Where a signal hurts before any spike has shown it: in spreads, or as an absolute value."""

    spreads: float = 0.0
    value: float = 0.0


_WATCHED: Final = {
    "own.run_delay_ms_per_s": _Level(spreads=25.0),
    "own.throttled_delay_ms_per_s": _Level(spreads=20.0),
    "own.reclaim_ms_per_s": _Level(spreads=20.0),
    "own.net_send_wait_ms_per_s": _Level(spreads=20.0),
    "own.net_receive_wait_ms_per_s": _Level(spreads=20.0),
    "own.block_wait_ms_per_s": _Level(spreads=25.0),
    "host.reclaim_direct_ms_per_s": _Level(spreads=20.0),
    "host.retransmits_per_s": _Level(spreads=25.0),
    "host.softirq_net_rx_ms_per_s": _Level(spreads=25.0),
    "host.send_queue_bytes": _Level(spreads=25.0),
    "host.worst_disk_ms_per_s": _Level(spreads=30.0),
    "gpu.temperature_celsius": _Level(value=87.0),
    "gpu.power_limit_percent": _Level(value=100.0),
    "gpu.ecc_corrected_per_s": _Level(spreads=40.0),
    "gpu.pcie_replays_per_s": _Level(spreads=40.0),
    "own.gpu_others_percent": _Level(spreads=8.0),
}
_PLACES: Final = np.array([INDEX[name] for name in _WATCHED])
_SPREADS: Final = np.array([level.spreads for level in _WATCHED.values()])
_VALUES: Final = np.array([level.value for level in _WATCHED.values()])


class EarlyWarning:
    """Trends of one subject's signals and steps, and the levels at which its spikes came."""

    def __init__(self, settings: DetectionSettings) -> None:
        self._settings = settings
        self._levels = np.full(_PLACES.size, np.nan)
        self._silent_until_ns = 0
        self.steps = StepClimb(settings)

    def remember(self, now: Floats, deviation: Floats) -> None:
        """Keep the levels of a spike's beginning: float64[CHANNELS] each."""
        away = deviation[_PLACES] > self._settings.early_spreads
        seen = np.where(np.isnan(self._levels), now[_PLACES], np.fmin(self._levels, now[_PLACES]))
        self._levels = np.where(away, seen, self._levels)

    def look(self, signals: SubjectSignals, at_ns: int) -> list[Approach]:
        """Find what will be at its level soon; after a finding silent for a while."""
        if at_ns < self._silent_until_ns:
            return []
        left_s = self.steps.expected_in_s()
        steps = [] if left_s is None else [Approach(None, left_s)]
        found = sorted(
            [*steps, *self._climbing(signals)], key=lambda warning: warning.expected_in_s
        )
        if found:
            self._silence(at_ns, self._settings.early_silence_s)
        return found

    def spike_at(self, at_ns: int) -> None:
        """Say nothing while a spike is there, nor from seconds of it."""
        self.steps.forget()
        self._silence(at_ns, self._settings.early_window_s)

    def _silence(self, at_ns: int, seconds: float) -> None:
        self._silent_until_ns = max(self._silent_until_ns, at_ns + int(seconds * _NS))

    def _climbing(self, signals: SubjectSignals) -> list[Approach]:
        settings = self._settings
        away = signals.newest_deviation(_PLACES) > settings.early_spreads
        if not away.any():
            return []
        seconds, rows = signals.last(settings.early_window_s)
        if len(seconds) < settings.early_window_s:
            return []
        return self._approaching(seconds, rows[:, _PLACES], signals)

    def _approaching(
        self, seconds: Floats, rows: NDArray[np.float64], signals: SubjectSignals
    ) -> list[Approach]:
        settings = self._settings
        middle = signals.baseline.median[_PLACES]
        spread = signals.baseline.spread[_PLACES]
        slope, sureness, now = trend(seconds, rows)
        late = len(seconds) // 2
        still = trend(seconds[late:], rows[late:])[0] >= STILL_CLIMBING * slope
        level = np.where(_VALUES > 0, _VALUES, middle + _SPREADS * spread)
        level = np.where(np.isnan(self._levels), level, self._levels)
        left_s = (level - now) / np.where(slope > 0, slope, np.nan)
        lately = rows[-settings.early_away_s :] - middle
        away = (lately > settings.early_spreads * spread).all(axis=0)
        soon = (left_s > 0) & (left_s <= settings.early_horizon_s)
        chosen = np.flatnonzero(away & soon & still & (sureness >= settings.early_sureness))
        return [Approach(int(_PLACES[i]), float(left_s[i])) for i in chosen]
