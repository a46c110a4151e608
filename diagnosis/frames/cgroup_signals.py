"""Signals by cgroup: of those that are watched, and of the busiest, which may be in their way."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.ebpf.ebpf_tables import OTHER
from collectors.records.activity import HostTable

from .columns import Columns
from .signals import SIGNALS, Scope, SignalTable

MOST_BUSY: Final = 8
"""Cgroups that are named beside the subjects' own."""

_WATCHED_BY: Final = "sleep_ms_per_s"
"""A cgroup of which this is zero is not watched: a task that runs sleeps too."""

_RANKS: Final = (
    (4, ("cpu_ms_per_s",)),
    (2, ("block_read_bytes_per_s", "block_write_bytes_per_s")),
    (2, ("net_send_bytes_per_s", "net_receive_bytes_per_s")),
    (2, ("page_faults_per_s",)),
    (2, ("reclaim_ms_per_s",)),
)
"""How many of the first by which sum."""

Wanted = tuple[str, str, str, float]
"""A signal, its column, what is taken off first, and a factor: as `Columns` has them."""


class _Plan:
    """What is where in one layout.

    ranks   how many of the first by which columns of `names`, where the layout has one
    quota   columns of periods with a quota, and of those in which it ran out; None: there are none
    """

    def __init__(self, columns: tuple[str, ...], wanted: Iterable[Wanted]) -> None:
        self.columns = Columns(columns, wanted)
        self.names = self.columns.names
        self.ranks = [
            (count, [self.names.index(name) for name in names if name in self.names])
            for count, names in _RANKS
        ]
        quota = ("quota_periods", "throttled_periods")
        known = set(quota) <= set(columns)
        self.quota = [columns.index(name) for name in quota] if known else None


@dataclass(slots=True)
class _Rates:
    """One table's rates: float64[rows, names]."""

    plan: _Plan
    rows: tuple[str, ...]
    places: dict[str, int]
    values: NDArray[np.float64]

    def of(self, cgroup: str) -> dict[str, float]:
        """Give one cgroup's signals, zeros where nothing grew."""
        place = self.places.get(cgroup)
        if place is None:
            return dict.fromkeys(self.plan.names, 0.0)
        return dict(zip(self.plan.names, self.values[place].tolist(), strict=True))

    def first(self, rank: int) -> list[str]:
        """Give the first cgroups of a rank, the largest first; zeros and OTHER have none."""
        count, places = self.plan.ranks[rank]
        sums = self.values[:, places].sum(axis=1) if len(places) > 1 else self.values[:, places[0]]
        order = np.argsort(-sums, kind="stable")[: count + 1].tolist()
        found = [self.rows[place] for place in order if sums[place] > 0]
        return [cgroup for cgroup in found if cgroup != OTHER][:count]


class CgroupSignals:
    """Plans the layouts once, and reads the tables each second."""

    def __init__(self, table: SignalTable = SIGNALS) -> None:
        self._wanted = [
            (signal.name, signal.column, signal.minus, signal.per_column)
            for signal in table.values()
            if signal.column and signal.scopes & {Scope.CGROUP, Scope.SUBJECT}
        ]
        self._no_cgroup = {
            name for name, signal in table.items() if Scope.CGROUP not in signal.scopes
        }
        self._of_watched = {name for name, signal in table.items() if signal.watched}
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self._tables: list[_Rates] = []
        self._quota: dict[str, float] = {}

    def read(self, tables: Mapping[str, HostTable]) -> None:
        """Take one second's tables `cgroup` and `block_cgroup`."""
        found = [tables[name] for name in ("cgroup", "block_cgroup") if name in tables]
        self._tables = [self._rates(table) for table in found]
        self._quota = self._throttled_percent(tables["cgroup"]) if "cgroup" in tables else {}

    def names(self) -> Collection[str]:
        """Give the cgroups that did anything."""
        return self._tables[0].places.keys() if self._tables else ()

    def of(self, cgroup: str) -> dict[str, float]:
        """Give everything that is known of a cgroup, as for a subject."""
        found: dict[str, float] = {}
        for table in self._tables:
            found |= table.of(cgroup)
        if not found.get(_WATCHED_BY):
            found = {name: value for name, value in found.items() if name not in self._of_watched}
        if cgroup in self._quota:
            found["throttled_periods_percent"] = self._quota[cgroup]
        return found

    def busiest(self, own: Iterable[str]) -> dict[str, dict[str, float]]:
        """Give the signals of scope `cgroup` of the busiest and of `own`."""
        chosen = dict.fromkeys(own)
        room = len(chosen) + MOST_BUSY
        for rank in range(len(_RANKS)):
            for cgroup in self._first(rank):
                if len(chosen) < room:
                    chosen[cgroup] = None
        return {cgroup: self._public(cgroup) for cgroup in chosen}

    def _public(self, cgroup: str) -> dict[str, float]:
        return {n: value for n, value in self.of(cgroup).items() if n not in self._no_cgroup}

    def _first(self, rank: int) -> list[str]:
        for table in self._tables:
            if table.plan.ranks[rank][1]:
                return table.first(rank)
        return []

    def _rates(self, table: HostTable) -> _Rates:
        plan = self._plan(table)
        places = {name: place for place, name in enumerate(table.rows)}
        rates = plan.columns.rates(table.values, table.span_ns)
        return _Rates(plan, table.rows, places, rates)

    def _plan(self, table: HostTable) -> _Plan:
        plan = self._plans.get(table.columns)
        if plan is None:
            plan = self._plans[table.columns] = _Plan(table.columns, self._wanted)
        return plan

    def _throttled_percent(self, table: HostTable) -> dict[str, float]:
        """Give, of cgroups with a quota, the share of periods in which it ran out."""
        quota = self._plan(table).quota
        if quota is None:
            return {}
        periods = table.values[:, quota[0]]
        out = table.values[:, quota[1]]
        return {
            table.rows[place]: min(100.0, 100.0 * float(out[place]) / float(periods[place]))
            for place in np.flatnonzero(periods).tolist()
        }
