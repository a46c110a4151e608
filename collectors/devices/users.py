"""Which GPUs a process uses, as the driver last told: one source looks, another asks."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Final

_FRESH_NS: Final = 15_000_000_000
"""Three looks at processes: older ones say nothing."""


class GpuUsers:
    """Processes by GPU; made once and handed to both sources, so that a reload keeps it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pids: dict[int, frozenset[int]] = {}
        self._seen_ns = 0

    def see(self, pids: Mapping[int, Iterable[int]], boottime_ns: int) -> None:
        """Note the processes of the GPUs that were asked, by index; others stay as they were."""
        with self._lock:
            self._pids |= {gpu: frozenset(of) for gpu, of in pids.items()}
            self._seen_ns = boottime_ns

    def gpus(self, pid: int, boottime_ns: int) -> tuple[int, ...]:
        """Give the GPUs of a process, in order; empty where no driver names it."""
        if not self._known(boottime_ns):
            return ()
        return tuple(sorted(gpu for gpu, pids in self._pids.items() if pid in pids))

    def pids(self, gpu: int, boottime_ns: int) -> frozenset[int]:
        """Give the processes on a GPU; empty where no driver tells."""
        return self._pids.get(gpu, frozenset()) if self._known(boottime_ns) else frozenset()

    def _known(self, boottime_ns: int) -> bool:
        return bool(self._seen_ns) and boottime_ns - self._seen_ns <= _FRESH_NS
