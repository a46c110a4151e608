"""Host signals in bins of 100 ms: when each left what was usual, beside a spike's onset."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np
from numpy.typing import NDArray

from diagnosis.frames.frame import FINE_BINS, Frame
from diagnosis.frames.signals import FINE

from .baseline import NORMAL
from .channels import FLOORS, INDEX, ChannelPlace

NO_LAGS: Final = np.full(len(FINE), np.nan)
FINE_FRAMES: Final = 30
REACH_S: Final = 3.0
"""How far before an onset, and after it, a departure is looked for."""
_NS: Final = 1e9
_SPREADS: Final = 5.0
_FEWEST_BINS: Final = 30
_SHAPE: Final = (len(FINE), FINE_BINS)
_GAP: Final = np.full(_SHAPE, np.nan, np.float32)
_FLOORS: Final = np.array(
    [
        2 * FLOORS[INDEX[n]] if (n := f"{ChannelPlace.HOST}.{name}") in INDEX else np.inf
        for name in FINE
    ]
)


class FineHistory:
    """The last half minute in bins of 100 ms, of the whole host."""

    def __init__(self) -> None:
        self._frames: deque[tuple[int, int, NDArray[np.float32]]] = deque(maxlen=FINE_FRAMES)

    def take(self, frame: Frame) -> None:
        """Add a frame's bins; one without them leaves a gap."""
        fits = frame.fine.shape == _SHAPE
        self._frames.append((frame.boottime_ns, frame.span_ns, frame.fine if fits else _GAP))

    def lags_s(self, onset_ns: int) -> NDArray[np.float64]:
        """Give float64[FINE]: seconds from each signal's departure to the onset.

        Negative: the signal followed. NaN: it did not leave what was usual, or is not measured.
        """
        tenths = np.arange(1, FINE_BINS + 1)
        ends = [
            end_ns - span_ns + tenths * span_ns // FINE_BINS for end_ns, span_ns, _ in self._frames
        ]
        ends_ns = np.concatenate([np.zeros(0, np.int64), *ends])
        order = np.argsort(ends_ns, kind="stable")
        ends_s = (ends_ns[order] - onset_ns) / _NS
        parts = [_GAP[:, :0], *(fine for _, _, fine in self._frames)]
        bins = np.concatenate(parts, axis=1)[:, order].astype(np.float64)
        lags = np.full(len(FINE), np.nan)
        usual = bins[:, ends_s < -REACH_S]
        near = np.abs(ends_s) <= REACH_S
        for row in np.flatnonzero(np.count_nonzero(usual == usual, axis=1) >= _FEWEST_BINS):  # noqa: PLR0124
            known = usual[row][~np.isnan(usual[row])]
            middle = np.median(known)
            spread = max(NORMAL * float(np.median(np.abs(known - middle))), _FLOORS[row])
            away = np.abs(bins[row, near] - middle) > _SPREADS * spread
            left = np.flatnonzero(away[:-1] & away[1:])
            if left.size:
                lags[row] = -ends_s[near][left[0]]
        return lags
