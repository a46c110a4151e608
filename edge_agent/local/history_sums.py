"""Sums of the local history for pictures: added up by SQLite, as a day has millions of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from collectors.records.estimated_time import EstimatedTime, summed

from .history_read import HistoryReader
from .history_tables import (
    ACTIVITY,
    KERNEL_CALLS,
    METRIC,
    PROCESS_CALLS,
    PROCESS_TIME,
    HistoryTable,
)

MOST_ROWS: Final = 200
"""Kernels and processes that are given, the busiest."""


@dataclass(frozen=True, slots=True)
class LevelBin:
    """A metric over a short span of Unix time: mean, least and most of what was kept of it."""

    at_ns: int
    key: str
    mean: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class FamilyBin:
    """A kernel family over a short span of Unix time: its GPU time in ns."""

    at_ns: int
    family: str
    time_ns: float


@dataclass(frozen=True, slots=True)
class KernelTime:
    """A kernel's GPU time, and its launches: estimates of all, as sampling is known."""

    name: str
    family: str
    time: EstimatedTime
    launches: float


@dataclass(frozen=True, slots=True)
class CallSum:
    """Launches of a kernel, or of all of a process.

    variance   of the estimate; None where nothing bounds it
    share      of the time in which they were watched, the least of it
    more       other columns by name
    """

    name: str
    launches: float
    variance: float | None
    share: float
    more: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Terms:
    """How a table that has kernels with their times says each."""

    name: str
    family: str
    launches: str
    time_ns: str
    variance: str
    windows: str
    estimated_ns: str


_SAMPLED: Final = "* 1e6 / sampling_rate_millionths"
_TIMED: Final = (
    (
        PROCESS_TIME,
        f"{PROCESS_TIME.name}, json_each(kernels)",
        _Terms(
            *(f"json_extract(value, '$.{part}')"
              for part in ("kernel", "family", "launches", "gpu_time_ns", "variance", "windows",
                           "estimated_ns"))
        ),
    ),
    (
        ACTIVITY,
        f"{ACTIVITY.name} AS found JOIN name ON name.id = found.name",
        _Terms("name.name", "family", f"count {_SAMPLED}", f"gpu_time_ns {_SAMPLED}", "NULL", "0",
               "max(span_ns, 1)"),
    ),
)  # fmt: skip
"""Where kernels are timed in their processes, what came of it; else what sources saw of them."""


class HistorySums(HistoryReader):
    """Adds up rows of [since, until) of Unix time. All raise HistoryUnavailable."""

    def levels(self, name: str, since_ns: int, until_ns: int, width_ns: int) -> list[LevelBin]:
        """Give a metric in bins of `width_ns`, each key's in the order of time."""
        sums = "avg(value), min(value), max(value)"
        return [
            LevelBin(at_ns, key, *values)
            for at_ns, key, *values in self._bins(METRIC, name, sums, since_ns, until_ns, width_ns)
        ]

    def families(self, since_ns: int, until_ns: int, width_ns: int) -> list[FamilyBin]:
        """Give GPU time by kernel family in bins of `width_ns`."""
        for table, source, terms in _TIMED:
            query = (
                f"SELECT at_ns / {width_ns}, {terms.family}, sum({terms.time_ns}) "  # noqa: S608
                f"FROM {source} WHERE boot = ? AND at_ns BETWEEN ? AND ? GROUP BY 1, 2"
            )
            if found := list(self._timed(table, query, (), since_ns, until_ns, width_ns)):
                return [FamilyBin(*row) for row in found]
        return []

    def kernel_times(self, since_ns: int, until_ns: int) -> list[KernelTime]:
        """Give the kernels that took most GPU time, the first first."""
        for table, source, terms in _TIMED:
            # Estimates of one kind of error are one to `summed`, however many they were.
            query = (
                f"SELECT {terms.name}, {terms.family}, sum({terms.launches}), "  # noqa: S608
                f"sum({terms.time_ns}), sum({terms.variance}), max({terms.windows}), "
                f"sum({terms.estimated_ns}) FROM {source} WHERE boot = ? "
                f"AND at_ns BETWEEN ? AND ? GROUP BY 1, 2, {terms.variance} IS NULL, "
                f"{terms.windows} > 0 HAVING sum({terms.time_ns}) IS NOT NULL"
            )
            if found := list(self._of_boots(table, query, since_ns, until_ns)):
                return _kernel_times(found)
        return []

    def kernel_calls(self, since_ns: int, until_ns: int) -> list[CallSum]:
        """Give launches by kernel and process, the most frequent first."""
        return self._calls(KERNEL_CALLS, ("pid", "process", "family"), (), since_ns, until_ns)

    def process_calls(self, since_ns: int, until_ns: int) -> list[CallSum]:
        """Give launches, waits and memory by process, the busiest first."""
        groups = ("pid", "application", "container", "pod", "slurm_job")
        sums = (
            "sum(wait_ns) AS wait_ns", "sum(span_ns) AS span_ns", "max(peak_bytes) AS peak_bytes",
        )  # fmt: skip
        return self._calls(PROCESS_CALLS, groups, sums, since_ns, until_ns)

    def _calls(
        self,
        table: HistoryTable,
        groups: Sequence[str],
        sums: Sequence[str],
        since_ns: int,
        until_ns: int,
    ) -> list[CallSum]:
        more = [*groups, *sums]
        query = (
            "SELECT name.name, sum(launches), "  # noqa: S608
            "CASE WHEN count(variance) = count(*) THEN sum(variance) END, min(share), "
            f"{', '.join(more)} FROM {table.name} AS found JOIN name ON name.id = found.name "
            f"WHERE boot = ? AND at_ns BETWEEN ? AND ? GROUP BY 1, {', '.join(groups)} "
            f"ORDER BY 2 DESC LIMIT {MOST_ROWS}"
        )
        names = [text.rpartition(" ")[2] for text in more]
        return [
            CallSum(name, launches, variance, share, dict(zip(names, rest, strict=True)))
            for name, launches, variance, share, *rest in self._of_boots(
                table, query, since_ns, until_ns
            )
        ]

    def _bins(
        self,
        table: HistoryTable,
        name: str,
        sums: str,
        since_ns: int,
        until_ns: int,
        width_ns: int,
    ) -> Iterator[tuple[Any, ...]]:
        query = (
            f"SELECT at_ns / {width_ns}, name.key, {sums} FROM {table.name} AS found "  # noqa: S608
            "JOIN name ON name.id = found.name WHERE boot = ? AND at_ns BETWEEN ? AND ? "
            "AND name.name = ? GROUP BY 1, 2 ORDER BY 2, 1"
        )
        return self._timed(table, query, (name,), since_ns, until_ns, width_ns)

    def _timed(
        self,
        table: HistoryTable,
        query: str,
        more: Sequence[object],
        since_ns: int,
        until_ns: int,
        width_ns: int,
    ) -> Iterator[tuple[Any, ...]]:
        """Give rows whose first column is a bin, with the bin's first moment in Unix time."""
        for boot, low_ns, high_ns in self._ranges(table, since_ns, until_ns):
            for at, *rest in self._asked(query, (boot.number, low_ns, high_ns, *more)):
                yield boot.clock.unix_ns(at * width_ns)[0], *rest

    def _of_boots(
        self, table: HistoryTable, query: str, since_ns: int, until_ns: int
    ) -> Iterator[tuple[Any, ...]]:
        for boot, low_ns, high_ns in self._ranges(table, since_ns, until_ns):
            yield from self._asked(query, (boot.number, low_ns, high_ns))

    def _ranges(
        self, table: HistoryTable, since_ns: int, until_ns: int
    ) -> Iterator[tuple[Any, int, int]]:
        """Give each boot with its span on CLOCK_BOOTTIME; an older file lacks later tables."""
        if table.name not in self._tables:
            return
        for boot in self._boots(since_ns, until_ns):
            low_ns, high_ns = boot.clock.boottime_range(since_ns, until_ns)
            yield boot, low_ns, high_ns


def _kernel_times(rows: Iterable[tuple[Any, ...]]) -> list[KernelTime]:
    parts: dict[tuple[str, str], list[EstimatedTime]] = {}
    launches: dict[tuple[str, str], float] = {}
    for name, family, count, *estimate in rows:
        parts.setdefault((name, family), []).append(EstimatedTime(*estimate))
        launches[name, family] = launches.get((name, family), 0.0) + count
    found = [KernelTime(*key, summed(times), launches[key]) for key, times in parts.items()]
    busy = [kernel for kernel in found if kernel.time.value_ns > 0]
    return sorted(busy, key=lambda kernel: -kernel.time.value_ns)[:MOST_ROWS]
