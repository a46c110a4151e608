"""Pressure (PSI) by cgroup, where the unified hierarchy has it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from collectors.bpf.cgroup_names import hierarchy_of
from collectors.host.pressure import stall_totals
from collectors.port import SourceUnavailable

_RESOURCES: Final = ("cpu", "memory", "io")
_LONGEST_FILE: Final = 4_096
_FRESH_NS: Final = 5_000_000_000
_MOST: Final = 256

_Stalls = dict[str, tuple[int, int]]


class CgroupPressure:
    """Asked each second of the subjects' cgroups; the first answer about one is its base.

    root    of the unified hierarchy; None: nothing is ever found
    """

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._before: dict[str, tuple[int, _Stalls, dict[str, float]]] = {}

    @classmethod
    def of_host(cls) -> CgroupPressure:
        """Use the hierarchy of this host's CPU controller, where that is the unified one."""
        try:
            found = hierarchy_of("cpu")
        except SourceUnavailable:
            return cls(None)
        return cls(Path(found.path) if found.unified else None)

    def signals(self, cgroup: str, now_ns: int) -> dict[str, float]:
        """Give what a cgroup was stalled for since the last question, in ms/s."""
        if self._root is None:
            return {}
        stalls = self._read(cgroup)
        before = self._before.get(cgroup)
        if before is not None and now_ns <= before[0]:
            return dict(before[2])  # two subjects of one cgroup
        base = before if before and now_ns - before[0] <= _FRESH_NS else None
        found = _grown(stalls, base[1], now_ns - base[0]) if base else {}
        if len(self._before) >= _MOST:
            self._before.clear()
        self._before[cgroup] = (now_ns, stalls, found)
        return dict(found)

    def _read(self, cgroup: str) -> _Stalls:
        stalls: _Stalls = {}
        for resource in _RESOURCES:
            file = f"{self._root}{cgroup.rstrip('/')}/{resource}.pressure"
            try:
                fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                stalls[resource] = stall_totals(os.read(fd, _LONGEST_FILE), file)
            except (OSError, SourceUnavailable):
                continue  # removed while it was read, or switched off
            finally:
                os.close(fd)
        return stalls


def _grown(now: _Stalls, base: _Stalls, span_ns: int) -> dict[str, float]:
    return {
        f"pressure_{resource}_{kind}_ms_per_s": max(0, later - earlier) * 1e3 / span_ns
        for resource in now.keys() & base.keys()
        for kind, later, earlier in zip(
            ("some", "full"), now[resource], base[resource], strict=True
        )
    }
