"""Where roll-ups lie: Parquet beside the releases, and what of those is in them.

FOLDER/hours.json                      how many windows of each hour roll-ups were made from
FOLDER/sums/hour/date=2026-11-23/      cells: one file, by the first day of its span
FOLDER/outcomes/hour/date=2026-11-23/  how windows ended

Hours, days, weeks and eight weeks of unix time: weeks start on Thursday, 00:00 UTC.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Final
from urllib.parse import quote

import platformdirs
import pyarrow as pa

from aggregator.releases.packs import windows_by_hour
from aggregator.releases.release_files import SUPPRESSED_FOLDER
from aggregator.releases.releases import escaped, literal
from aggregator.releases.window_files import HOURS, ROLL_UPS
from transport.files.own_names import own_entries

EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001  (naive UTC, as released timestamps are)

ALWAYS: Final = EPOCH  # no window starts before it
NEVER: Final = datetime(9000, 1, 1)  # noqa: DTZ001  (naive UTC)
"""None starts after it."""


class RollupPeriod(StrEnum):
    """How long the windows are together that a roll-up adds up."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    EIGHT_WEEKS = "eight_weeks"

    @property
    def seconds(self) -> int:
        return _SECONDS[self]

    @property
    def length(self) -> timedelta:
        return timedelta(seconds=self.seconds)

    @property
    def shorter(self) -> RollupPeriod | None:
        """The period whose roll-ups this one is made of."""
        periods = list(RollupPeriod)
        at = periods.index(self)
        return periods[at - 1] if at else None

    @property
    def lengths(self) -> tuple[int, int]:
        """The shortest and the longest window that no shorter period holds, seconds."""
        return 1 if self.shorter is None else self.shorter.seconds + 1, self.seconds

    def holds(self, window_s: int) -> bool:
        """Whether it is the shortest period that holds such a window."""
        shortest, longest = self.lengths
        return shortest <= window_s <= longest

    @property
    def view(self) -> str:
        return self.value if self is RollupPeriod.EIGHT_WEEKS else f"{self.value}s"

    def start(self, when: datetime) -> datetime:
        """First moment of the period that holds a moment; naive UTC."""
        return EPOCH + (when - EPOCH) // self.length * self.length

    def first_from(self, when: datetime) -> datetime:
        """First moment of the first period that does not start before a moment; naive UTC."""
        return EPOCH - (EPOCH - when) // self.length * self.length

    def span(self, start: datetime) -> tuple[datetime, datetime]:
        """First and next moment of one file's: a day of hours, a month of days, else a year."""
        day = start.replace(hour=0, minute=0, second=0, microsecond=0)
        if self is RollupPeriod.HOUR:
            return day, day + timedelta(days=1)
        if self is RollupPeriod.DAY:
            first = day.replace(day=1)
            return first, (first + timedelta(days=31)).replace(day=1)
        first = day.replace(month=1, day=1)
        return first, first.replace(year=first.year + 1)


_SECONDS: Final = {
    RollupPeriod.HOUR: 3600,
    RollupPeriod.DAY: 86_400,
    RollupPeriod.WEEK: 604_800,
    RollupPeriod.EIGHT_WEEKS: 4_838_400,
}


def period_of(name: str) -> RollupPeriod:
    """Read a period's name. Raises ValueError for any other."""
    try:
        return RollupPeriod(name)
    except ValueError:
        known = ", ".join(RollupPeriod)
        raise ValueError(f"period: expected one of {known}, got {name!r}") from None


def utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


FORMAT: Final = 1
SUMS: Final = "sums"
OUTCOMES: Final = "outcomes"

ROWS: Final = "rows.parquet"  # of each folder, its file
DAYS: Final = "date"  # how folders begin, by the first day
MONTHS: Final = "month"
_HOUR_FORMAT: Final = "%Y%m%dT%H"
_LOCK: Final = ".lock"


class RollupsUnavailable(OSError):
    """Roll-ups that cannot be written or read; the message says where and why."""


def rollup_folder(releases: Path) -> Path:
    """Choose where the roll-ups of a folder lie: in it, or where it is not ours, in our cache."""
    beside = releases / ROLL_UPS
    if os.access(beside if beside.is_dir() else releases, os.W_OK):
        return beside
    name = hashlib.sha256(str(releases.resolve()).encode()).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("pointillist")) / ROLL_UPS / name


def file_of(folder: Path, kind: str, period: RollupPeriod, start: datetime) -> Path:
    """Where the rows of the periods around one lie; kind: SUMS or OUTCOMES."""
    first, _ = period.span(start)
    return folder / kind / period.value / f"date={first:%Y-%m-%d}" / ROWS


def files_between(
    folder: Path, kind: str, period: RollupPeriod, first: datetime, end: datetime
) -> list[Path]:
    """The files that hold periods which start in [first, end), in order."""
    start, last = period.span(first)[0], period.span(end)[0]
    days = dated(folder / kind / period.value)
    return [path for path, first in days if start <= first <= last]


def dated(folder: Path, key: str = DAYS) -> list[tuple[Path, datetime]]:
    """Give the files below the folders of DAYS or MONTHS, and when each begins, in order."""

    def first(name: str) -> datetime | None:
        day = name.removeprefix(f"{key}=")
        try:
            found = datetime.fromisoformat(day if key == DAYS else f"{day}-01")
        except ValueError:
            return None
        return found if name == f"{key}={str(found)[: len(day)]}" else None

    # What is neither is told by whoever lists days.
    beside = own_entries(
        folder, first, folders=True, beside=lambda name: key != DAYS or name.startswith(MONTHS)
    )
    return [(path / ROWS, start) for path, start in beside if (path / ROWS).exists()]


def texts_sql(texts: Iterable[str]) -> str:
    return ", ".join(map(literal, texts))


def rows_sql(files: Sequence[Path], schema: pa.Schema) -> str:
    """Rows of files of roll-ups, in SQL; without a file none, with their columns."""
    if files:
        names = texts_sql(escaped(str(path)) for path in files)
        return f"SELECT {', '.join(schema.names)} FROM read_parquet([{names}])"  # noqa: S608
    columns = ", ".join(
        f"CAST(NULL AS {_SQL[str(field.type)]}) AS {field.name}" for field in schema
    )
    return f"SELECT {columns} WHERE false"


_SQL: Final = {
    "string": "VARCHAR", "int32": "INTEGER", "int64": "BIGINT", "double": "DOUBLE",
    "timestamp[us]": "TIMESTAMP",
}  # fmt: skip


def settled_ns(folder: Path) -> int:
    """When what roll-ups were made from was written last, unix nanoseconds; 0: never."""
    try:
        return (folder / HOURS).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the roll-ups: one program at a time changes them. Raises RollupsUnavailable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except RollupsUnavailable:
        raise
    except OSError as error:
        raise RollupsUnavailable(
            f"roll-ups at {folder}: {error.strerror or error}; name another folder"
        ) from error


@contextmanager
def written_whole(target: Path) -> Iterator[Path]:
    """Give where to write, beside the target, then rename: a reader sees the whole file or none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    yield partial
    partial.chmod(0o644)
    partial.replace(target)


@dataclass(frozen=True, slots=True)
class SettledHours:
    """Windows by folder, series and hour: a release that comes late makes one more."""

    counts: Mapping[str, int]

    @classmethod
    def of(cls, releases: Path) -> SettledHours:
        """Count the windows of a folder of releases, suppressed ones too."""
        counts: Counter[str] = Counter()
        for part in (".", SUPPRESSED_FOLDER):
            for (series, hour), windows in windows_by_hour(releases / part).items():
                name = f"series={quote(series, safe='')}"
                counts[f"{part}/{name}/{hour:{_HOUR_FORMAT}}"] += windows
        return cls(counts)

    @classmethod
    def read(cls, folder: Path) -> SettledHours:
        """Read what roll-ups were made from. Raises RollupsUnavailable for a later version."""
        try:
            content = json.loads((folder / HOURS).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return cls({})
        if content.get("format") != FORMAT:
            raise RollupsUnavailable(
                f"roll-ups at {folder}: expected format {FORMAT}, got {content.get('format')!r}"
            )
        return cls(content["windows"])

    def write(self, folder: Path) -> None:
        partial = folder / f".{HOURS}.partial"
        partial.write_text(json.dumps({"format": FORMAT, "windows": self.counts}))
        partial.replace(folder / HOURS)

    def with_hours(self, found: SettledHours, hours: Collection[datetime]) -> SettledHours:
        names = {f"{hour:{_HOUR_FORMAT}}" for hour in hours}
        taken = {
            key: count for key, count in found.counts.items() if key.rsplit("/", 1)[1] in names
        }
        return SettledHours({**self.counts, **taken})

    def in_order(self) -> OrderedHours:
        """Give the windows of all series together, by hour."""
        windows: Counter[datetime] = Counter()
        for key, count in self.counts.items():
            windows[_hour(key)] += count
        hours = sorted(windows)
        return OrderedHours(hours, list(accumulate((windows[hour] for hour in hours), initial=0)))

    def more_than(self, before: SettledHours, series: str | None = None) -> set[datetime]:
        """Give the hours with more windows than before, of one series or all."""
        of = None if series is None else f"/series={quote(series, safe='')}/"
        return {
            _hour(key)
            for key, count in self.counts.items()
            if count > before.counts.get(key, 0) and (of is None or of in key)
        }


@dataclass(frozen=True, slots=True)
class OrderedHours:
    """Hours that have windows, oldest first, and the windows before each and after the last."""

    hours: Sequence[datetime]
    before: Sequence[int]

    def between(self, first: datetime, end: datetime) -> int:
        return (
            self.before[bisect_left(self.hours, end)] - self.before[bisect_left(self.hours, first)]
        )


@lru_cache(maxsize=100_000)
def _hour(key: str) -> datetime:
    return datetime.strptime(key.rsplit("/", 1)[1], _HOUR_FORMAT)  # noqa: DTZ007  (naive UTC)
