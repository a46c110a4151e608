"""Memory pressure inside the job's cgroup: the machine's own memory is left alone."""

from __future__ import annotations

from typing import Final

from bench.diagnosis.faults.fault import STRESS, Fault, Graded

_KEPT: Final = (0.5, 0.25, 0.12)
"""Share of its page cache that the job may keep."""
_ROOM: Final = 192 << 20


class _Pressure(Fault):
    cause = "memory_pressure"
    counter = "limit_hits"
    least = 5.0
    _sizes: tuple[int, int] | None = None

    def meter(self) -> float:
        return self.work.job.limit_hits()

    def withdraw(self) -> None:
        self.work.job.set_memory_limit(None)

    def sizes(self) -> tuple[int, int]:
        """Return the job's (page cache, anonymous memory) in bytes, as first asked."""
        if self._sizes is None:
            anonymous = self.work.job.anonymous_bytes()
            self._sizes = max(0, self.work.job.memory_bytes() - anonymous), anonymous
        return self._sizes


class LowLimit(Graded, _Pressure):
    """A limit below what the job has charged."""

    injector = "low_limit"

    grades = _KEPT
    rest = 1.1

    def apply(self, number: float) -> None:
        cache, anonymous = self.sizes()
        self.work.job.set_memory_limit(anonymous + round(cache * number))


class GreedyNeighbour(_Pressure):
    """stress-ng grows in the job's memory cgroup, whose limit had left it room."""

    injector = "stress_vm"

    def inject(self) -> None:
        cache, anonymous = self.sizes()
        self.work.job.set_memory_limit(cache + anonymous + _ROOM)
        size = _ROOM + round(cache * (1 - _KEPT[self.intensity]))
        words = [STRESS, "--vm", "1", "--vm-bytes", str(size), "--vm-hang", "1", "--vm-populate"]
        self.launch([*words, "--quiet"], inside=True)
