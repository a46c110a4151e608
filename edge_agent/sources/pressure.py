"""Pressure stall information: how long tasks waited for a resource, from /proc/pressure."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from edge_agent.activity import HostTable

from .port import SourceUnavailable

RESOURCES: Final = ("cpu", "memory", "io", "irq")
COLUMNS: Final = ("some_ns", "full_ns")
_NS_PER_US: Final = 1_000
_LONGEST_FILE: Final = 4_096

Totals = dict[str, tuple[int, int]]


class PressureSource:
    """Nanoseconds stalled per resource since the last drain: some task, and every task."""

    name = "pressure"

    def __init__(self, folder: Path = Path("/proc/pressure")) -> None:
        self._folder = folder
        self._before: tuple[int, Totals] | None = None

    def probe(self) -> str | None:
        """Say why there is no pressure information."""
        try:
            found = self._read()
        except (OSError, SourceUnavailable) as error:
            return f"pressure: {error}"
        return None if found else f"pressure: {self._folder} does not exist (kernel without PSI)"

    def start(self) -> None:
        """Begin with the next drain."""
        self._before = None

    def drain(self, now_boottime_ns: int) -> Iterable[HostTable]:
        """Yield one row per resource for the time since the last call; the first gives nothing."""
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
        """Forget the last values."""
        self._before = None

    def _read(self) -> Totals:
        totals: Totals = {}
        for resource in RESOURCES:
            file = f"{self._folder}/{resource}"
            try:
                descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                text = os.read(descriptor, _LONGEST_FILE).decode("ascii", errors="replace")
            finally:
                os.close(descriptor)
            totals[resource] = stall_totals(text, file)
        return totals


def stall_totals(text: str, where: str) -> tuple[int, int]:
    """Give (some, full) in ns; a line that is not there is 0. Raises SourceUnavailable."""
    totals = {"some": 0, "full": 0}
    for line in text.splitlines():
        kind, *fields = line.split()
        values = dict(field.split("=", 1) for field in fields if "=" in field)
        if kind not in totals or not values.get("total", "").isdigit():
            raise SourceUnavailable(f"{where}: expected `some|full ... total=N`, got {line[:80]!r}")
        totals[kind] = int(values["total"]) * _NS_PER_US
    return totals["some"], totals["full"]
