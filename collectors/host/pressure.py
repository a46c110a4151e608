"""Pressure stall information: how long tasks waited for a resource, from /proc/pressure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from collectors.interface import SourceUnavailable
from collectors.kernel_files import KernelFile
from collectors.records.activity import HostTable

RESOURCES: Final = ("cpu", "memory", "io", "irq")
COLUMNS: Final = ("some_ns", "full_ns")
_NS_PER_US: Final = 1_000
_LINE: Final = re.compile(rb"(some|full) .*\btotal=(\d{1,19})(?: .*)?")

Totals = dict[str, tuple[int, int]]


class PressureSource:
    """Nanoseconds stalled per resource since the last drain: some task, and every task."""

    name = "pressure"

    def __init__(self, folder: Path = Path("/proc/pressure")) -> None:
        self._folder = folder
        self._files: dict[str, KernelFile] = {}
        self._before: tuple[int, Totals] | None = None
        self._started = False

    def probe(self) -> str | None:
        try:
            found = self._read()
        except (OSError, SourceUnavailable) as error:
            return f"pressure: {error}"
        return None if found else f"pressure: {self._folder} does not exist (kernel without PSI)"

    def start(self) -> None:
        self.stop()
        self._started = True

    def drain(self, now_boottime_ns: int) -> Iterable[HostTable]:
        """Yield one row per resource for the time since the last call; the first gives nothing."""
        if not self._started:
            raise SourceUnavailable("pressure: not started")
        try:
            now = self._read()
        except OSError as error:
            raise SourceUnavailable(f"pressure: {error}") from None
        before, self._before = self._before, (now_boottime_ns, now)
        if before is None:
            return
        begun_ns, then = before
        rows = tuple(name for name in now if name in then)
        grown = [[max(0, n - t) for n, t in zip(now[r], then[r], strict=True)] for r in rows]
        values = np.array(grown, np.int64).reshape(len(rows), len(COLUMNS))
        yield HostTable(self.name, rows, COLUMNS, values, begun_ns, now_boottime_ns - begun_ns)

    def stop(self) -> None:
        self._before, self._started = None, False
        while self._files:
            self._files.popitem()[1].close()

    def _read(self) -> Totals:
        totals: Totals = {}
        for resource in RESOURCES:
            file = self._files.get(resource)
            if file is None:
                try:
                    file = self._files[resource] = KernelFile(f"{self._folder}/{resource}")
                except FileNotFoundError:
                    continue
            totals[resource] = stall_totals(file.head(), file.path)
        return totals


def stall_totals(text: bytes, where: str) -> tuple[int, int]:
    """Give (some, full) in ns; a line that is not there is 0. Raises SourceUnavailable."""
    totals = {b"some": 0, b"full": 0}
    for line in text.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            shown = line[:80].decode("ascii", "replace")
            raise SourceUnavailable(f"{where}: expected `some|full ... total=N`, got {shown!r}")
        totals[found[1]] = int(found[2]) * _NS_PER_US
    return totals[b"some"], totals[b"full"]
