"""The table of signals, and those that are the growth of a column, also in tenths of a second."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from collectors.interface import UnavailableSource
from collectors.records.activity import HostTicks
from transport.settings.config import build, limited, read_table

from .frame import FINE_BINS

MOST_FINE: Final = 24
"""Host signals kept in bins of 100 ms: a recording's largest part."""

NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")

_SAID: Final = r"(?:[^{}]|\{whose\})*\{value\}(?:[^{}]|\{whose\})*"

UNITS: Final = {
    "_ms_per_s": "ms/s",
    "_bytes_per_s": "bytes/s",
    "_per_s": "1/s",
    "_percent": "%",
    "_mhz": "MHz",
    "_watts": "W",
    "_celsius": "°C",
    "_bytes": "bytes",
    "_ms": "ms",
    "_us": "µs",
    "_count": "",
}
"""End of a name to the unit; the first that fits decides."""


class SignalTableError(ValueError):
    """A table of signals that does not fit: one line says what was expected and what came."""


class Scope(StrEnum):
    HOST = "host"
    SUBJECT = "subject"
    CGROUP = "cgroup"
    GPU = "gpu"


class Hurts(StrEnum):
    UP = "up"
    DOWN = "down"
    EITHER = "either"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One signal; the head of `signals.toml` says what each key is."""

    name: str
    scopes: frozenset[Scope] = limited(fewest=1)
    group: str
    hurts: Hurts
    about: str
    said: str = limited(form=_SAID)
    floors: Mapping[Scope, float] = field(default_factory=dict)
    behind: str = ""
    total: str = ""
    column: str = ""
    minus: str = ""
    busiest: str = ""
    fine: bool = False
    watched: bool = False

    def __post_init__(self) -> None:
        if unit_of(self.name) is None:
            raise ValueError(f"expected a name that ends in one of {', '.join(UNITS)}")
        if not set(self.floors) <= self.scopes:
            raise ValueError(f"floors: expected scopes of its own, got {', '.join(self.floors)}")
        if self.fine and not (self.total and Scope.HOST in self.scopes):
            raise ValueError("expected a fine signal to be the host's, with a total")

    @property
    def unit(self) -> str:
        return unit_of(self.name) or ""

    @property
    def per_column(self) -> float:
        """How much of the signal's unit one unit of its column is: columns of time are in ns."""
        return 1e-6 if self.unit == "ms/s" else 1.0


SignalTable = Mapping[str, Signal]
"""Signals by name, in the table's order."""


@cache
def load_signals(path: Path | None = None) -> SignalTable:
    path = path or Path(__file__).with_name("signals.toml")
    return signals_of(read_table(path, error=SignalTableError), f"{path}: ")


def signals_of(rows: Mapping[str, Any], where: str = "") -> SignalTable:
    table = {name: _signal(name, row, where) for name, row in rows.items()}
    fine = sum(signal.fine for signal in table.values())
    if not table:
        raise SignalTableError(f"{where}expected at least one signal, got none")
    if fine > MOST_FINE:
        raise SignalTableError(f"{where}expected at most {MOST_FINE} fine signals, got {fine}")
    return table


def unit_of(name: str) -> str | None:
    return next((unit for end, unit in UNITS.items() if name.endswith(end)), None)


def fine_of(table: SignalTable) -> tuple[str, ...]:
    return tuple(signal.name for signal in table.values() if signal.fine)


def floors_of(table: SignalTable, scope: Scope) -> dict[str, float]:
    """Give name -> floor of the signals that detection reads in a scope, in the table's order."""
    return {
        signal.name: signal.floors[scope] for signal in table.values() if scope in signal.floors
    }


def of_scope(table: SignalTable, scope: Scope) -> tuple[str, ...]:
    return tuple(signal.name for signal in table.values() if scope in signal.scopes)


def _signal(name: str, row: Any, where: str) -> Signal:
    if not NAME.fullmatch(name):
        raise SignalTableError(
            f"{where}{name!r}: expected a name of a-z, 0-9 and _, up to 64 characters"
        )
    if not isinstance(row, Mapping) or "name" in row:
        raise SignalTableError(f"{where}{name}: expected a table without a name, got {row!r:.80}")
    return build(Signal, {"name": name, **row}, f"{where}{name}.", error=SignalTableError)


SIGNALS: Final = load_signals()
FINE: Final = fine_of(SIGNALS)
"""Rows of `HostSample.fine`."""


_NODES: Final = Path("/sys/devices/system/node/online")

_BLOCK: Final = (
    "block_reads", "block_writes", "block_read_bytes", "block_write_bytes", "block_ms",
    "block_queue", "worst_disk",
)  # fmt: skip
_LOST: Final = {
    "on_softirq_entry": ("softirq", "busiest_cpu_softirq"),
    "on_softirq_exit": ("softirq", "busiest_cpu_softirq"),
    "on_irq_entry": ("irq", "busiest_cpu_irq"),
    "on_irq_exit": ("irq", "busiest_cpu_irq"),
    "interrupts": ("softirq", "irq", "busiest_cpu_irq", "busiest_cpu_softirq"),
    "on_block_complete": _BLOCK,
    "block": _BLOCK,
    "block queue time": ("block_queue",),
    "on_tcp_retransmit": ("retransmits", "worst_peer_retransmits"),
    "retransmits": ("retransmits", "worst_peer_retransmits"),
    "on_sock_send": ("net_send", "send_queue", "srtt"),
    "on_sock_receive": ("net_receive",),
    "sockets": ("net_", "send_queue", "srtt"),
    "send-queue bytes": ("send_queue",),
    "round-trip times": ("srtt", "round_trip"),
    "waits of sends and receives": ("net_send_wait", "net_receive_wait"),
    "bytes by peer": ("worst_peer_retransmits",),
    "on_page_fault": ("page_faults",),
    "faults": ("page_faults",),
    "on_reclaim_begin": ("reclaim_direct",),
    "on_reclaim_end": ("reclaim_direct",),
    "on_reclaim_cgroup_begin": ("reclaim_cgroup",),
    "on_reclaim_cgroup_end": ("reclaim_cgroup",),
    "reclaim": ("reclaim_",),
    "on_packet_drop": ("queue_drops",),
    "queue drops": ("queue_drops",),
    "on_numa_move": ("numa_",),
    "moves between NUMA nodes": ("numa_",),
    "throttling": ("throttled_delay",),
}
"""What the eBPF source names as absent, to the starts of the signals that are lost with it."""


def lacking(absent: Iterable[UnavailableSource], nodes: Path = _NODES) -> frozenset[str]:
    """Give the signals that cannot be measured where running sources lack these parts."""
    starts = {start for absence in absent for start in _LOST.get(absence.source, ())}
    try:
        online = nodes.read_text(encoding="ascii")
    except OSError:
        online = ""
    if "-" not in online and "," not in online:  # several are `0-1` or `0,2`
        starts.add("numa_")
    return frozenset(name for name in SIGNALS if name.startswith(tuple(starts)))


_NS_PER_S: Final = 1e9


class Columns:
    """Which columns of one layout are which signals: name, column, column to take off, factor."""

    def __init__(
        self, layout: tuple[str, ...], wanted: Iterable[tuple[str, str, str, float]]
    ) -> None:
        at = {column: index for index, column in enumerate(layout)}
        rows = [row for row in wanted if row[1] in at and (not row[2] or row[2] in at)]
        self.names = tuple(row[0] for row in rows)
        self._plus = np.array([at[row[1]] for row in rows], np.intp)
        pairs = [(place, at[row[2]]) for place, row in enumerate(rows) if row[2]]
        self._less = np.array([place for place, _ in pairs], np.intp)
        self._minus = np.array([column for _, column in pairs], np.intp)
        self._factors = np.array([row[3] for row in rows])

    def grown(self, growth: NDArray[Any]) -> NDArray[np.float64]:
        """Give growth[..., columns] as growth of the signals; what falls below zero is zero."""
        found = growth[..., self._plus].astype(np.float64)
        if len(self._less):
            found[..., self._less] -= growth[..., self._minus]
        return np.asarray(np.maximum(found, 0.0) * self._factors)

    def rates(self, growth: NDArray[Any], span_ns: int) -> NDArray[np.float64]:
        return np.asarray(self.grown(growth) * (_NS_PER_S / span_ns))


_TENTHS: Final = np.arange(FINE_BINS + 1, dtype=np.float64)
_MOST_SNAPSHOTS: Final = 4_096
"""What waits for its frame: 40 s at 100 Hz."""


class FineBins:
    def __init__(self, table: SignalTable = SIGNALS) -> None:
        self._names = fine_of(table)
        self._wanted = [
            (name, table[name].total, table[name].minus, table[name].per_column)
            for name in self._names
        ]
        self._layout: tuple[str, ...] | None = None
        self._times: list[NDArray[np.int64]] = []
        self._totals: list[NDArray[np.uint64]] = []

    def lack(self, signals: Collection[str]) -> None:
        """Leave these out: a kernel without their hook counts zeros."""
        self._wanted = [row for row in self._wanted if row[0] not in signals]
        self._layout = None

    def add(self, ticks: HostTicks) -> None:
        if ticks.metrics != self._layout:
            self._layout = ticks.metrics
            self._columns = Columns(ticks.metrics, self._wanted)
            self._rows = np.array([self._names.index(n) for n in self._columns.names], np.intp)
            self._times, self._totals = [], []
        self._times.append(ticks.boottime_ns)
        self._totals.append(ticks.totals)

    def take(self, begin_ns: int, end_ns: int) -> NDArray[np.float32]:
        """Give float32[fine signals, FINE_BINS] per second; NaN where no snapshot fell."""
        fine = np.full((len(self._names), FINE_BINS), np.nan, np.float32)
        if not self._times:
            return fine
        times, totals = np.concatenate(self._times), np.concatenate(self._totals)
        edges = begin_ns + _TENTHS * ((end_ns - begin_ns) / FINE_BINS)
        edges[-1] = end_ns
        last = np.searchsorted(times, edges, side="right") - 1
        there = (last[:-1] >= 0) & (last[1:] > last[:-1])
        if there.any():
            first, until = last[:-1][there], last[1:][there]
            growth = totals[until].astype(np.int64) - totals[first].astype(np.int64)
            spans_s = (times[until] - times[first]) / 1e9
            rates = self._columns.grown(growth) / spans_s[:, None]
            fine[self._rows[:, None], np.flatnonzero(there)] = rates.T
        kept = max(int(last[-1]), 0, len(times) - _MOST_SNAPSHOTS)
        self._times, self._totals = [times[kept:]], [totals[kept:]]
        return fine
