"""What the kernel did, by cgroup, CPU, device and peer, with 100 snapshots a second; all local."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.bpf import bcc
from collectors.bpf.bpf_maps import BpfStatistics
from collectors.bpf.cgroup_names import CgroupNames
from collectors.interface import SourceUnavailable, UnavailableSource
from collectors.records.activity import HostRecord, HostTable

from . import ebpf_loaders
from . import ebpf_tables as layout
from .ebpf_tables import CgroupTable, GrowingTable, cost_table, cpu_table, device_name, peer_name
from .host_ticks import MOST_WATCHED, HostPrograms, Limits, TickState

CHOSEN: Final = 16
_LEAVES_BELOW: Final = 32
"""One that is watched stays while it is among so many: a rhythm takes time to learn."""
_LEAST_PER_S: Final = 5
"""Stays on a CPU in a second: below there is no rhythm to speak of."""
_MOST_PER_S: Final = 20_000
"""Above, a rhythm is beyond the marks' bound, and 120 ns a switch would no longer be little."""
_MOST_ALL_PER_S: Final = 40_000
"""All that are watched: 0.5 % of a core."""

NOTHING: Final = HostTable("cgroup", (), ("switches",), np.zeros((0, 1), np.int64), 0, 0)


class BusiestCgroups:
    def __init__(self) -> None:
        self._chosen: tuple[str, ...] = ()

    def choose(self, table: HostTable) -> frozenset[str]:
        span_s = max(table.span_ns / 1e9, 1e-3)
        rates = {name: count / span_s for name, count in table.column("switches").items()}
        ranked = sorted(
            (name for name, rate in rates.items() if _LEAST_PER_S <= rate <= _MOST_PER_S),
            key=lambda name: -rates[name],
        )
        stay = [name for name in self._chosen if name in set(ranked[:_LEAVES_BELOW])]
        chosen: list[str] = []
        room = float(_MOST_ALL_PER_S)
        for name in [*stay, *(name for name in ranked if name not in stay)]:
            if len(chosen) < CHOSEN and rates[name] <= room:
                chosen.append(name)
                room -= rates[name]
        self._chosen = tuple(chosen)
        return frozenset(chosen)


LOST: Final = "without it the host source serves CPU, memory, disk and network means only"


class EbpfSource:
    name = "ebpf"

    def __init__(
        self, loader: str = "auto", limits: Limits | None = None, *, rhythm: bool = True
    ) -> None:
        """Take bounds and loader; `rhythm` is of use to diagnosis alone."""
        self._loader, self._rhythm = loader, rhythm
        self._limits = limits or Limits()
        self._drain: _Drain | None = None
        self._wanted: frozenset[str] = frozenset()

    @property
    def absent(self) -> list[UnavailableSource]:
        return list(self._running().programs.absent)

    @property
    def loader(self) -> str:
        return self._running().programs.loader

    def probe(self) -> str | None:
        reason = self._lacking()
        return f"eBPF: {reason}; {LOST}" if reason else None

    def start(self) -> None:
        if self._drain is None:
            with _told():
                self._drain = _Drain(self._load(), self._rhythm)

    def try_out(self) -> list[UnavailableSource]:
        """Load and let go; BCC takes two seconds. Raises SourceUnavailable."""
        with _told():
            programs = self._load(attach=False)
        programs.close()
        return programs.absent

    def drain(self, now_boottime_ns: int) -> Iterable[HostRecord]:
        return self._running().records(now_boottime_ns, self._wanted)

    def watch(self, cgroups: Collection[str]) -> None:
        """Mark the rhythm of at most 64 cgroups' processes; none: the 16 busiest at each drain."""
        if len(cgroups) > MOST_WATCHED:
            raise ValueError(f"expected at most {MOST_WATCHED} cgroups, got {len(cgroups)}")
        self._wanted = frozenset(cgroups)

    def stop(self) -> None:
        if self._drain is not None:
            self._drain.programs.close()
            self._drain = None

    def _running(self) -> _Drain:
        if self._drain is None:
            raise SourceUnavailable("eBPF: not started")
        return self._drain

    def _load(self, *, attach: bool = True) -> HostPrograms:
        failed: SourceUnavailable | None = None
        for load, reason in self._loaders(attach=attach):
            if reason is None:
                try:
                    return load(self._limits)
                except SourceUnavailable as error:
                    failed = failed or error
        raise failed or SourceUnavailable(str(self._lacking()))

    def _lacking(self) -> str | None:
        reasons = [reason for _, reason in self._loaders()]
        return None if None in reasons else "; ".join(filter(None, reasons))

    def _loaders(
        self, *, attach: bool = True
    ) -> Iterator[tuple[Callable[[Limits], HostPrograms], str | None]]:
        """Yield those that were asked for, each with why it cannot serve, or None."""
        if self._loader in {"auto", "libbpf"}:
            yield partial(ebpf_loaders.load_libbpf, attach=attach), ebpf_loaders.unavailable()
        if self._loader in {"auto", "bcc"}:
            yield ebpf_loaders.load_bcc, bcc.unavailable()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except SourceUnavailable as error:
        raise SourceUnavailable(f"eBPF: {error}; {LOST}") from None


class _Drain:
    def __init__(self, programs: HostPrograms, rhythm: bool) -> None:
        self.programs, self._rhythm = programs, programs.rhythm if rhythm else None
        self._tables = [
            (GrowingTable(name, programs.tables[key], columns), name_of)
            for key, name, columns, name_of in (
                ("devices", "device", layout.DEVICE_COLUMNS, device_name),
                ("peers", "peer", layout.PEER_COLUMNS, peer_name),
            )
            if key in programs.tables
        ]
        self._cgroups = self._cgroup_table(
            "cgroups", "cgroup", layout.CGROUP_COLUMNS, programs.cgroup_root
        )
        self._blocks = self._cgroup_table(
            "block_cgroups", "block_cgroup", layout.BLOCK_CGROUP_COLUMNS, programs.block_root
        )
        self._statistics = BpfStatistics(programs.program_fds)
        self._watched = BusiestCgroups()
        self._at_ns: int | None = None
        self._states = programs.states()
        self._seen = programs.ticks.state()

    def records(self, now_ns: int, wanted: frozenset[str]) -> Iterator[HostRecord]:
        """Read everything once."""
        seen = self.programs.ticks.state()
        ticks = self.programs.ticks.read()
        if ticks is not None:
            yield ticks
        begun_ns, self._at_ns = self._at_ns, now_ns
        begun_ns = now_ns if begun_ns is None else begun_ns
        busy = NOTHING
        for table in self._grown(seen, begun_ns, now_ns - begun_ns):
            busy = table if table.name == "cgroup" else busy
            yield table
        self._seen = seen
        if self._rhythm is not None and self._cgroups is not None:
            yield from self._rhythm.records(self._cgroups.name_of)
            names = wanted or self._watched.choose(busy)
            self._rhythm.watch(frozenset(self._cgroups.ids(names)))

    def _grown(self, seen: TickState, begun_ns: int, span_ns: int) -> Iterator[HostTable]:
        states = self.programs.states()
        grown = _deltas(states, self._states)
        self._states = states
        timer = (seen.ticks - self._seen.ticks, seen.cost_ns - self._seen.cost_ns)
        yield cpu_table(grown, begun_ns, span_ns)
        yield cost_table(grown, timer, begun_ns, span_ns)
        statistics = self._statistics.grown(begun_ns, span_ns)
        if statistics is not None:
            yield statistics
        kept_back = self.programs.kept_back(states)
        for cgroups, extra in ((self._cgroups, kept_back), (self._blocks, [])):
            table = cgroups.grown(begun_ns, span_ns, extra) if cgroups else None
            if table is not None:
                yield table
        for growing, name_of in self._tables:
            table = growing.grown(growing.read(), name_of, begun_ns, span_ns)
            growing.forget_idle()
            if table is not None:
                yield table

    def _cgroup_table(
        self, key: str, name: str, columns: tuple[str, ...], root: str | None
    ) -> CgroupTable | None:
        if root is None or key not in self.programs.tables:
            return None
        latest = [column for column in layout.CGROUP_LATEST if column in columns]
        table = GrowingTable(name, self.programs.tables[key], columns, latest)
        return CgroupTable(table, CgroupNames(root))


def _deltas(now: NDArray[np.uint64], before: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Give now - before, 0 where a value (a pointer, a start) went down."""
    return np.where(now >= before, now - before, np.uint64(0))
