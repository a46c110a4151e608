"""From the last seconds of frames to a vector of named features of one subject."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.frames.signals import FINE, SIGNALS

from .baseline import CHANNEL_NAMES, CHANNELS, FLOORS, INDEX, Floats, SignalBaseline
from .detection_settings import DetectionSettings
from .tail_detector import TailRatios

FEATURES_VERSION: Final = 2
CAP: Final = 8.0
"""Deviations and ratios, in octaves, end here."""
_LAG_CAP_S: Final = 3.0
_HISTORY: Final = 60
_REFRESH_FRAMES: Final = 4
_FEW_SECONDS: Final = 10
_RELATIVE_SPREAD: Final = np.array(
    [0.08 if SIGNALS[channel.signal].unit.endswith("/s") else 0.02 for channel in CHANNELS]
)
"""Share of the median below which a stray is nothing: rates vary more than states."""
_AWAY: Final = 4.0
"""Spreads from which a signal counts as away from its baseline."""
_EVENTS: Final = np.array(
    [
        place
        for place, channel in enumerate(CHANNELS)
        if channel.signal.startswith(
            ("xids_", "faults_", "rows_remapped", "ecc_uncorrected", "gpu_lost", "gpu_silent")
        )
    ]
)
"""What happens once and has its effect later: the second in which it came counts."""
_EVENTS_REACH_NS: Final = 10_000_000_000
_ENTERED_NS: Final = 300_000_000
"""A frame in which the spike took less than this says little of it."""

_SHARES: Final = {
    "share.own_cpu": ("own.cpu_ms_per_s", "other.cpu_ms_per_s"),
    "share.own_write": ("own.block_write_bytes_per_s", "other.block_write_bytes_per_s"),
    "share.own_read": ("own.block_read_bytes_per_s", "other.block_read_bytes_per_s"),
    "share.own_send": ("own.net_send_bytes_per_s", "other.net_send_bytes_per_s"),
}
_PER_STEP: Final = {
    "step.cpu": INDEX["own.cpu_ms_per_s"],
    "step.send": INDEX["own.net_send_bytes_per_s"],
    "step.receive": INDEX["own.net_receive_bytes_per_s"],
    "step.read": INDEX["own.block_read_bytes_per_s"],
    "step.sleep": INDEX["own.sleep_ms_per_s"],
}
"""What one step takes: the channel's ratio over the rate's; missing where steps take none."""
_PER_STEP_PLACES: Final = np.array(list(_PER_STEP.values()))
_STEP_FEATURES: Final = ("step.p10", "step.p50", "step.p99", "step.rate", *_PER_STEP)

FEATURE_NAMES: Final = (
    *(f"{name}.z" for name in CHANNEL_NAMES),
    *(f"{name}.r" for name in CHANNEL_NAMES),
    *(f"lag.{name}" for name in FINE),
    *_SHARES,
    *_STEP_FEATURES,
)
FEATURE_INDEX: Final = {name: place for place, name in enumerate(FEATURE_NAMES)}


class SubjectSignals:
    """The signals around one subject: what is usual, and the last seconds."""

    def __init__(self, settings: DetectionSettings) -> None:
        self._settings = settings
        self._history: deque[tuple[int, Floats]] = deque(maxlen=_HISTORY)
        self._waiting: deque[Floats] = deque()
        self._since_refresh = 0
        self.baseline = self._empty()

    def _empty(self) -> SignalBaseline:
        return SignalBaseline(FLOORS, self._settings.signal_window_s, _RELATIVE_SPREAD)

    def take(self, values: Floats, at_ns: int) -> None:
        """Add float64[CHANNELS] of one frame; nothing is learned from it yet."""
        self._history.append((at_ns, values))

    def learn(self) -> None:
        self._waiting.append(self._history[-1][1])
        early = self.baseline.seconds < _FEW_SECONDS
        if len(self._waiting) > (0 if early else self._settings.hold_back_frames):
            self.baseline.add(self._waiting.popleft())
            self._since_refresh += 1
        if self._since_refresh >= (1 if early else _REFRESH_FRAMES):
            self.baseline.refresh()
            self._since_refresh = 0

    def doubt(self) -> None:
        self._waiting.clear()

    def restart(self, frames: int) -> None:
        self.doubt()
        self.baseline = self._empty()
        for _, values in list(self._history)[-frames:]:
            self.baseline.add(values)
        self.baseline.refresh()

    def now(self, onset_ns: int) -> Floats:
        """Mean of each channel since the onset, over the last seconds that a cause is read from."""
        rows = [row for at, row in self._history if at > onset_ns + _ENTERED_NS]
        rows = rows[-self._settings.cause_window_s :] or [self._history[-1][1]]
        table = np.stack(rows)
        known = table == table  # noqa: PLR0124
        count = known.sum(axis=0)
        sums = np.where(known, table, 0.0).sum(axis=0)
        means = np.where(count > 0, sums / np.maximum(count, 1), np.nan)
        # Of events the most in a second since shortly before the onset.
        since_ns = onset_ns - _EVENTS_REACH_NS
        events = [row[_EVENTS] for at, row in self._history if at > since_ns]
        means[_EVENTS] = np.fmax.reduce(events or [self._history[-1][1][_EVENTS]])
        return means

    def since_ns(self, channel: int) -> int:
        """Since when a channel has been away from its baseline, without a break."""
        middle, spread = self.baseline.median[channel], self.baseline.spread[channel]
        since = self._history[-1][0]
        for at_ns, values in reversed(self._history):
            if not abs(values[channel] - middle) > _AWAY * spread:
                break
            since = at_ns
        return since


def vector_of(
    signals: SubjectSignals, onset_ns: int, ratios: TailRatios, lags_s: NDArray[np.float64]
) -> Floats:
    """Give float64[FEATURE_NAMES], NaN: missing; lags_s float64[FINE], from departure to onset."""
    now = signals.now(onset_ns)
    z = signals.baseline.deviation(now)
    octaves = np.sign(z) * np.log2(1 + np.abs(z))
    usual = signals.baseline.median
    ratio = np.log2((np.maximum(now, 0) + FLOORS) / (np.maximum(usual, 0) + FLOORS))
    pairs = [(now[INDEX[own]], now[INDEX[other]]) for own, other in _SHARES.values()]
    shares = [own / (own + other) if own + other > 0 else np.nan for own, other in pairs]
    taken = usual[_PER_STEP_PLACES] > FLOORS[_PER_STEP_PLACES]
    per_step = np.where(taken, ratio[_PER_STEP_PLACES] - ratios.rate, np.nan)
    steps = np.clip([*ratios, *per_step], -CAP, CAP)
    signal_part = np.clip(np.concatenate((octaves, ratio)), -CAP, CAP)
    lag_part = np.clip(lags_s, -_LAG_CAP_S, _LAG_CAP_S)
    return np.concatenate((signal_part, lag_part, shares, steps))
