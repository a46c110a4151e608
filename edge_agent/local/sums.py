"""Sums of the local history, added up by SQLite: a day has millions of rows. Random errors know
nothing of each other, so variances add up; of what all rows share, bounds do.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.records.basics import NORMAL
from collectors.records.gpu_calls import CountedCalls
from collectors.records.gpu_time import EstimatedTime, summed

from .history_read import LONGEST_RECORD_NS, Boot, HistoryReader
from .history_tables import ACTIVITY, METRIC, PACKED, PROCESS_TIME, HistoryTable, unpack

COVERAGE: Final = "watched"
"""The metric by which a source says that it watched a GPU."""
SOURCE: Final = "gpu_time"
_NS_PER_S: Final = 1_000_000_000
_STEPS_S: Final = (10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400)


class LevelBin(NamedTuple):
    """A metric over a short span of Unix time."""

    at_ns: int
    key: str
    mean: float
    least: float
    most: float


def of_list(name: str) -> str:
    return f"json_extract(part.value, '$.{name}')"


def _counted(seen: str, value: str, variance: str, below: str, above: str, share: str) -> str:
    """The sums that `calls_of` reads; an error that one row lacks is infinite (9e999) in all."""
    errors = (f"sum(coalesce({error}, 9e999))" for error in (variance, below, above))
    return (
        f"sum({seen}), sum({value}), {', '.join(errors)}, "
        f"sum({share} * span_ns) / max(sum(span_ns), 1)"
    )


def counted_of_list(value: str) -> str:
    """The same of a list; an older version's has one variance, read as `ONE_VARIANCE` says."""
    older, variance = "json_type(part.value, '$.below') IS NULL", of_list("variance")
    bound = f"CASE WHEN {older} THEN {NORMAL} * root({variance}) ELSE {{}} END"
    random = f"CASE WHEN {older} THEN 0.0 * {variance} ELSE {variance} END"
    below, above = (bound.format(of_list(name)) for name in ("below", "above"))
    return _counted(of_list("seen"), of_list(value), random, below, above, of_list("share"))


def _time(value: str, variance: str, windows: str, span: str) -> str:
    """The sums that `time_of` reads: of all, what has a variance, and what of it was learnt."""
    known = f"{variance} IS NOT NULL"
    return (
        f"sum({value}), total({variance}), max(CASE WHEN {known} THEN {windows} ELSE 0 END), "
        f"total(CASE WHEN {known} AND {windows} > 0 THEN {span} END), "
        f"total(CASE WHEN {known} THEN 0 ELSE {span} END), total({span})"
    )


COUNTED: Final = _counted("seen", "launches", "variance", "below", "above", "share")
_ESTIMATE: Final = ("gpu_time_ns", "variance", "windows", "estimated_ns")
TIMED: Final = _time(*_ESTIMATE)
TIMED_OF_LIST: Final = _time(*map(of_list, _ESTIMATE))
SCALE: Final = "* 1e6 / sampling_rate_millionths"
TIMED_AS_SEEN: Final = _time(f"gpu_time_ns {SCALE}", "NULL", "0", "max(found.span_ns, 1)")
GPU_PARTS: Final = (
    "busy_ns", "compute_ns", "copy_ns", "collective_ns", "copy_beside_compute_ns",
    "collective_beside_compute_ns", "kernels_beside_ns",
)  # fmt: skip
_LEAST_NS: Final = 1_000_000_000
_LONG: Final = f"max(found.span_ns, {_LEAST_NS})"
_INSIDE: Final = f"max(min(at_ns + {_LONG}, :end) - max(at_ns, :begin), 0) * 1.0 / {_LONG}"
"""The share of a row that lies in a step; what has no span is taken for a second's."""


class HistorySums(HistoryReader):
    """Adds up rows of [since, until) of Unix time by pattern of name. Raises HistoryUnavailable."""

    def __init__(
        self,
        file: Path | sqlite3.Connection,
        since_ns: int | None = None,
        until_ns: int | None = None,
        name: str | None = None,
    ) -> None:
        """Open a file, or read what is in memory. Raises HistoryUnavailable."""
        super().__init__(file)
        self._ends, self._name = (since_ns, until_ns), name
        if name is not None:
            self._db.create_function("wanted", 1, lambda found: fnmatchcase(found, name))

    @cached_property
    def _spanned(self) -> list[Boot]:
        return list(self._boots(*self._ends))

    def timed(self, query: str, listed: str, seen: str) -> Iterator[tuple[Any, ...]]:
        """Ask for work that was timed in its process; where none was, for what sources saw."""
        return iter(list(self.sums(PROCESS_TIME, query, listed)) or self.sums(ACTIVITY, seen))

    def extent(self, *tables: HistoryTable) -> tuple[int, int] | None:
        """Give from when to when in Unix time rows of these lie; None for no row."""
        found = []
        for table, order in ((table, order) for table in tables for order in ("", " DESC")):
            query = f"SELECT at_ns, span_ns FROM {{rows}} ORDER BY at_ns{order} LIMIT 1"  # noqa: S608
            for boot, at_ns, span_ns in self.sums(table, query):
                long_ns = max(span_ns, _LEAST_NS) if order else 0
                found.append(boot.clock.unix_ns(at_ns)[0] + long_ns)
        return (min(found), max(found)) if found else None

    def steps(self, most: int) -> Iterator[tuple[int, int, dict[str, float], float, float]]:
        """Give GPU time over time: begin and length of each step, in Unix time and ns.

        Then by family, of how much all was measured, and how much GPUs were used, added up over
        GPUs in ns. At most so many steps of a round length and two begun ones: they end with the
        rows, as coverage is told at once and work some seconds later. A row is spread evenly.
        """
        timed = (
            f"SELECT {of_list('family')}, sum({of_list('gpu_time_ns')} * {_INSIDE}) FROM {{rows}}"  # noqa: S608
        )
        seen = f"SELECT family, sum(gpu_time_ns {SCALE} * {_INSIDE}) FROM {{rows}}"  # noqa: S608
        busy = f"SELECT total({of_list('busy_ns')} * {_INSIDE}) FROM {{rows}}"  # noqa: S608
        covered = (
            f"SELECT total(value * {_INSIDE}) FROM {{rows}} AND name.name = '{COVERAGE}' "  # noqa: S608
            f"AND name.source = '{SOURCE}'"
        )
        ask = (PROCESS_TIME, timed, "families") if self.extent(PROCESS_TIME) else (ACTIVITY, seen)
        table, query, *listed = ask
        for step in _rounded(*(self.extent(table) or (0, 0)), most):
            families: dict[str, float] = defaultdict(float)
            for _, name, ns in self.sums(table, f"{query} GROUP BY 1", *listed, step=step):
                families[name] += ns or 0.0
            watched = self.sums(METRIC, covered, step=step, named=False)
            used = self.sums(PROCESS_TIME, busy, "gpus", step=step)
            totals = (sum(row[1] for row in rows) for rows in (watched, used))
            yield step[0], step[1] - step[0], families, *totals

    def levels(self) -> Iterator[tuple[Any, ...]]:
        """Give each metric: source, name, key, unit; rows, mean, least, most, last; Unix time."""
        heads = "name.source, name.name, name.key, name.unit"
        query = f"SELECT {heads}, count(*), sum(value), min(value), max(value) FROM {{rows}}"  # noqa: S608
        last = f"SELECT {heads}, value, max(at_ns) FROM {{rows}} GROUP BY found.name"  # noqa: S608
        found: dict[tuple[str, ...], list[float]] = {}
        for _, *name, count, total, least, most in self.sums(
            METRIC, f"{query} GROUP BY found.name"
        ):
            _into(found.setdefault(tuple(name), []), count, total, least, most)
        for boot, *name, value, at_ns in self.sums(METRIC, last):
            found[tuple(name)][4:] = [value, boot.clock.unix_ns(at_ns)[0]]
        for place, value, unix_ns in self._packed_rates():
            sums = found.setdefault(place, [])
            _into(sums, 1, value, value, value)
            sums[4:] = [value, unix_ns]
        for place, (rows, total, *others) in found.items():
            yield *place, int(rows), total / rows, *others

    def bins(self, name: str, width_ns: int) -> list[LevelBin]:
        """Give a metric in bins of `width_ns`, each key's in the order of time."""
        query = (
            f"SELECT at_ns / {width_ns}, name.key, avg(value), min(value), max(value) FROM {{rows}} "  # noqa: S608, E501
            "AND name.name = :metric GROUP BY 1, 2 ORDER BY 2, 1"
        )
        return [
            LevelBin(boot.clock.unix_ns(at * width_ns)[0], *values)
            for boot, at, *values in self.sums(METRIC, query, metric=name)
        ]

    def sums(
        self,
        table: HistoryTable,
        query: str,
        *lists: str,
        step: tuple[int, int] | None = None,
        named: bool = True,
        **values: object,
    ) -> Iterator[tuple[Any, ...]]:
        """Run a query over a table's rows in the span, boot by boot; give the boot first.

        query   `{rows}` stands for the rows, `found`, with their name
        lists   a column whose members are `part`, and what else is joined
        step    of Unix time, in which rows lie in part at least: `:begin` and `:end` of the query
        named   the name must match
        """
        parts = table.parts(self._tables)
        rows = " UNION ALL ".join(f"SELECT boot, at_ns, {p.select} FROM {p.name}" for p in parts)  # noqa: S608
        joined = [f"json_each(found.{lists[0]}) AS part", *lists[1:]] if lists else []
        source = ", ".join([f"({rows}) AS found JOIN name ON name.id = found.name", *joined])
        like = " AND wanted(name.name)" if named and self._name is not None else ""
        asked = query.format(
            rows=f"{source} WHERE boot = :boot AND at_ns BETWEEN :low AND :high{like}"
        )
        for boot in self._spanned if parts else ():
            low, high = boot.clock.boottime_range(*self._ends)
            if step is not None:
                begin, end = (_boottime(boot, edge) for edge in step)
                low, high = max(low, begin - LONGEST_RECORD_NS), min(high, end)
                values |= {"begin": begin, "end": end}
            ends = {"boot": boot.number, "low": low, "high": high}
            for row in self._asked(asked, ends | values):
                yield boot, *row

    def _packed_rates(self) -> Iterator[tuple[tuple[str, ...], float, int]]:
        """Give name, rate and end (Unix time) of each metric of each pack."""
        names = self.names(self._name)
        for boot in self._spanned:
            low, high = boot.clock.boottime_range(*self._ends)
            for at_ns, _, listed, cells, count, span_ns, times, totals in self._pages(boot, PACKED):
                if not low <= at_ns <= high:
                    continue
                numbers, values = unpack(listed, cells, 1)[:, 0], unpack(totals, count, cells)
                last_ns = int(unpack(times, count, 1)[-1, 0]) + span_ns
                unix_ns = boot.clock.unix_ns(last_ns)[0]
                rates = growth_rates(values, last_ns - at_ns, counted=not span_ns)
                for number, rate in zip(numbers.tolist(), rates, strict=True):
                    if number in names:
                        source, name, key, unit = names[number].values()
                        yield (source, name, key, f"{unit}/s"), rate, unix_ns


def growth_rates(values: NDArray[np.int64], span_ns: int, *, counted: bool) -> list[float]:
    """Give what columns int64[n, cells] grew by in a second; `counted`: they are totals."""
    grown = values[-1] - values[0] if counted else values[-1]
    return (np.maximum(grown, 0) * (1e9 / max(span_ns, 1))).tolist()  # type: ignore[no-any-return]


def _into(sums: list[float], count: float, total: float, least: float, most: float) -> None:
    if sums:
        count, total = sums[0] + count, sums[1] + total
        least, most = min(sums[2], least), max(sums[3], most)
    sums[:4] = [count, total, least, most]


def calls_of(
    seen: int,
    value: float,
    variance: float | None,
    below: float | None,
    above: float | None,
    share: float,
) -> CountedCalls:
    """Read the sums of `COUNTED`; None: infinite."""
    errors = (inf if error is None else error for error in (variance, below, above))
    return CountedCalls(seen, value, next(errors), share, *errors)


def time_of(
    value: float, variance: float, windows: int, learnt: float, unknown: float, whole: float
) -> EstimatedTime:
    """Read the sums of `_time`: spans in ns."""
    known = EstimatedTime(value, variance, windows, int(learnt))
    exact = EstimatedTime(0.0, 0.0, 0, int(whole - learnt - unknown))
    return summed([known, exact, EstimatedTime(0.0, None, 0, int(unknown))])


def _rounded(begin: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """Lay steps of a round length over a time; none over an empty one."""
    lengths = (length_s * _NS_PER_S for length_s in _STEPS_S)
    length = next((ns for ns in lengths if end - begin <= ns * most), _STEPS_S[-1] * _NS_PER_S)
    for number in range(begin // length, -(-end // length)):
        yield max(number * length, begin), min((number + 1) * length, end)


def _boottime(boot: Boot, unix_ns: int) -> int:
    guess = unix_ns - boot.clock.unix_ns(0)[0]
    return unix_ns - (boot.clock.unix_ns(guess)[0] - guess)
