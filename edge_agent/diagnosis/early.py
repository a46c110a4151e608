"""Early warning: signals that climb towards the level at which spikes come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .channels import INDEX, Floats
from .features import SubjectSignals
from .settings import Settings

_NS: Final = 1e9
_STILL_CLIMBING: Final = 0.6
"""Slope of the later half over the whole one's: a step that was made once is no climb."""


@dataclass(frozen=True, slots=True)
class Approach:
    """A signal on its way to its level."""

    channel: int
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
    """Trends of one subject's signals, and the levels at which its spikes came."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._levels = np.full(_PLACES.size, np.nan)
        self._silent_until_ns = 0

    def remember(self, now: Floats, deviation: Floats) -> None:
        """Keep the levels of a spike's beginning: float64[CHANNELS] each."""
        away = deviation[_PLACES] > self._settings.early_spreads
        seen = np.where(np.isnan(self._levels), now[_PLACES], np.fmin(self._levels, now[_PLACES]))
        self._levels = np.where(away, seen, self._levels)

    def look(self, signals: SubjectSignals, at_ns: int) -> list[Approach]:
        """Find signals that will be at their level soon; after a finding silent for a while."""
        settings = self._settings
        if at_ns < self._silent_until_ns:
            return []
        away = signals.newest_deviation(_PLACES) > settings.early_spreads
        if not away.any():
            return []
        seconds, rows = signals.last(settings.early_window_s)
        if len(seconds) < settings.early_window_s:
            return []
        found = self._approaching(seconds, rows[:, _PLACES], signals)
        if found:
            self._silent_until_ns = at_ns + int(settings.early_silence_s * _NS)
        return found

    def silence(self, at_ns: int) -> None:
        """Say nothing for a while: a spike is there or has just gone."""
        self._silent_until_ns = at_ns + int(self._settings.early_silence_s * _NS)

    def _approaching(
        self, seconds: Floats, rows: NDArray[np.float64], signals: SubjectSignals
    ) -> list[Approach]:
        settings = self._settings
        middle = signals.baseline.median[_PLACES]
        spread = signals.baseline.spread[_PLACES]
        slope, sureness, now = _trend(seconds, rows)
        late = len(seconds) // 2
        still = _trend(seconds[late:], rows[late:])[0] >= _STILL_CLIMBING * slope
        level = np.where(_VALUES > 0, _VALUES, middle + _SPREADS * spread)
        level = np.where(np.isnan(self._levels), level, self._levels)
        left_s = (level - now) / np.where(slope > 0, slope, np.nan)
        lately = rows[-settings.early_away_s :] - middle
        away = (lately > settings.early_spreads * spread).all(axis=0)
        soon = (left_s > 0) & (left_s <= settings.early_horizon_s)
        chosen = np.flatnonzero(away & soon & still & (sureness >= settings.early_sureness))
        found = [Approach(int(_PLACES[i]), float(left_s[i])) for i in chosen]
        return sorted(found, key=lambda one: one.expected_in_s)


def _trend(seconds: Floats, rows: NDArray[np.float64]) -> tuple[Floats, Floats, Floats]:
    """Fit a line to each column: slope a second, slope over its error, value at the end."""
    t = seconds - seconds.mean()
    middle = rows.mean(axis=0)
    squares = float((t * t).sum())
    slope = (t @ (rows - middle)) / squares
    left = rows - middle - t[:, None] * slope
    error = np.sqrt((left * left).sum(axis=0) / max(len(t) - 2, 1) / squares)
    sureness = slope / np.maximum(error, 1e-12)
    return slope, sureness, middle + t[-1] * slope
