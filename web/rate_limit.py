"""How often one viewer may ask: a bucket that refills, for each of a bounded number of viewers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

_MOST_VIEWERS = 10_000


class RateLimit:
    """Buckets by name; the one that was longest unused is dropped for a new one.

    per_s, burst   requests that come back each second, and that may come at once
    now            a clock that only goes forward, seconds
    """

    def __init__(self, per_s: float, burst: int, now: Callable[[], float]) -> None:
        self._per_s, self._burst, self._now = per_s, burst, now
        self._lock = Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, name: str) -> bool:
        """Take one request out of a bucket; False where it is empty."""
        return self._left(name, 1.0) >= 0

    def spent(self, name: str) -> bool:
        """Say whether a bucket is empty, and take nothing."""
        return self._left(name, 0.0) < 1

    def _left(self, name: str, taken: float) -> float:
        with self._lock:
            left, at = self._buckets.pop(name, (float(self._burst), self._now()))
            now = self._now()
            left = min(self._burst, left + (now - at) * self._per_s) - taken
            self._buckets[name] = max(left, 0.0) if left < 0 else left, now
            while len(self._buckets) > _MOST_VIEWERS:
                self._buckets.popitem(last=False)
            return left
