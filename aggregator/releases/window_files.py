"""Files of single windows in a folder of releases, by the names that a Leader gives them.

A folder is one of releases when it has something of ours. A Leader marks a new one as it starts
(`COARSE`), so that it is told from a folder that is no store before its first window is there.
"""

from __future__ import annotations

import filecmp
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.parquet as pq

from transport.files.own_names import own_entries, pass_over
from transport.process.printable import listed

from .cause_files import FOLDER as CAUSES_FOLDER
from .release_files import NAME as MARK
from .release_files import SUPPRESSED_FOLDER

PACKED: Final = "packed"
"""Below the folder of the single windows."""
COARSE: Final = ".coarse"
"""In a folder whose files are all of since counts are coarse."""
LOCK: Final = ".compaction.lock"
ROLL_UPS: Final = "rollups"
"""Below the folder of releases, where that can be written."""
HOURS: Final = "hours.json"
"""In the folder of roll-ups, once they have a window."""

_PARTS: Final = frozenset({PACKED, SUPPRESSED_FOLDER, CAUSES_FOLDER})
_BESIDE: Final = _PARTS | {COARSE, LOCK, ROLL_UPS, MARK}
_MOMENT: Final = "%Y%m%dT%H%M%SZ"
_NUMBER: Final = r"(?:0|[1-9]\d{0,9})"
_FILE: Final = re.compile(
    r"(\d{4})(\d\d)(\d\d)T(?:[01]\d|2[0-3])[0-5]\d[0-5]\dZ"
    rf"-c{_NUMBER}(-v{_NUMBER})?\.parquet"
)
_TAIL_BYTES: Final = 16_384


class NoStore(FileNotFoundError):
    """A folder that is none of releases; `others` lie in it."""

    def __init__(self, said: str, others: list[str]) -> None:
        super().__init__(said)
        self.others = others


class WindowTwice(OSError):
    """Two files hold the same window: which ones, and which to remove."""


@dataclass(frozen=True)
class Single:
    """The file of one window; day: of the window's start, UTC."""

    path: Path
    series: str
    day: date

    @property
    def window_start(self) -> datetime:
        return start_of(self.path.name)

    @property
    def cohort(self) -> int:
        return int(self.path.stem.split("-c")[1].split("-")[0])


def start_of(name: str) -> datetime:
    return datetime.strptime(name.split("-", maxsplit=1)[0], _MOMENT)  # noqa: DTZ007  (naive UTC)


def named_moment(when: datetime) -> str:
    """Give how names of files begin whose windows start at a moment: they sort by it."""
    return f"{when:{_MOMENT}}"


def need_store(root: Path) -> None:
    """Check that a folder is one of releases, new or not. Raises NoStore, OSError."""
    try:
        names = sorted(os.listdir(root))  # noqa: PTH208  (at each question)
    except FileNotFoundError:
        raise NoStore(f"no folder of releases at {root}", []) from None
    if any(name in _PARTS or name in {COARSE, MARK} or _series(name) for name in names):
        return
    if (root / ROLL_UPS / HOURS).exists():  # they outlive the windows
        return
    # What a disk has by itself, and readers of before left.
    others = [name for name in names if not name.startswith(".")]
    others = [name for name in others if name not in {"lost+found", ROLL_UPS}]
    raise NoStore(
        f"{root}: expected a Leader's folder of releases, with series=NAME in it, or {COARSE} "
        f"before its first window; found {listed(others, 'nothing')}",
        others,
    )


def folders_of(root: Path, depth: int = 4) -> Iterator[Path]:
    """Give a folder of releases and those below it whose files are read."""
    yield root
    if depth and _day(root.name) is None:
        for path, _ in own_entries(root, _folder, folders=True, beside=lambda _: True):
            yield from folders_of(path, depth - 1)


def series_of(single: Path) -> str:
    return unquote(single.parent.parent.name.removeprefix("series="))


def day_of(single: Path) -> date:
    return date.fromisoformat(single.parent.name.removeprefix("date="))


def series_folders(root: Path) -> list[tuple[Path, str]]:
    return own_entries(root, _series, folders=True, beside=_BESIDE.__contains__)


def all_singles(root: Path) -> Iterator[Single]:
    """Give the files of single windows, by series and name. Raises WindowTwice."""
    versions = root.name == SUPPRESSED_FOLDER

    def window_day(name: str) -> str | None:
        found = _FILE.fullmatch(name)
        return "-".join(found.groups()[:3]) if found and (versions or not found[4]) else None

    for folder, series in series_folders(root):
        for dated, day in own_entries(folder, _day, folders=True):
            for path, own_day in own_entries(dated, window_day):
                if own_day == str(day):
                    yield Single(path, series, day)
                elif (right := folder / f"date={own_day}" / path.name).exists():
                    raise _twice(right, path)
                else:
                    pass_over(path)


def need_once(paths: Iterable[Path]) -> None:
    """Check that no file is a copy of another one. Raises WindowTwice, OSError."""
    seen: dict[tuple[int, int], Path] = {}
    for path in paths:
        with suppress(FileNotFoundError):  # a compaction has moved it
            status = path.stat()
            key = status.st_size, _tail(path, status.st_size, status.st_mtime_ns)
            other = seen.setdefault(key, path)
            if other is not path and filecmp.cmp(other, path, shallow=False):
                raise _twice(*sorted((other, path), key=_is_copy))


@lru_cache(maxsize=65_536)
def _tail(path: Path, size: int, changed_ns: int) -> int:
    """Read a file's end, which says what is in it: two of one end are looked at further."""
    del changed_ns
    with path.open("rb") as file:
        file.seek(max(size - _TAIL_BYTES, 0))
        return hash(file.read())


def _is_copy(path: Path) -> tuple[bool, int]:
    """Sort a copy behind what it is one of: by what is in it, else by when it was written."""
    return _is_misplaced(path), path.stat().st_ctime_ns


def _is_misplaced(path: Path) -> bool:
    """Whether a file holds another window than its name says, or a pack those of other periods."""
    with suppress(pa.ArrowException, OSError, LookupError):
        row = pq.read_table(path, partitioning=None).slice(0, 1).to_pylist()[0]
        start = row["window_start"]
        if not _FILE.fullmatch(path.name):
            return path.parent.parent.name.removeprefix("period=") not in periods_of(start)
        version = f"-v{row['version'] or 0}" if "version" in row else ""
        name = f"{named_moment(start)}-c{row['cohort']}{version}.parquet"
        return (row["series"], name) != (series_of(path), path.name)
    return False


def _twice(right: Path, copy: Path) -> WindowTwice:
    folder = Path(os.path.commonpath([right, copy]))
    names = [str(path.relative_to(folder)) for path in (right, copy)]
    return WindowTwice(
        f"{folder}: {names[0]} and {names[1]} hold one window twice: remove {names[1]}"
    )


def periods_of(day: date) -> tuple[str, str]:
    """Name the week and the year that a day is in."""
    iso = day.isocalendar()
    return f"{iso.year}-W{iso.week:02d}", f"{day.year}"


def _folder(name: str) -> str | None:
    ours = name in _PARTS or name.startswith(("period=", "generation="))
    return name if ours or _series(name) or _day(name) else None


def _series(name: str) -> str | None:
    if not name.isascii():  # as no quoted name is; bytes that are no text could not be quoted
        return None
    series = unquote(name.removeprefix("series="))
    return series if name == f"series={quote(series, safe='')}" else None


def _day(name: str) -> date | None:
    try:
        day = date.fromisoformat(name.removeprefix("date="))
    except ValueError:
        return None
    return day if name == f"date={day}" else None
