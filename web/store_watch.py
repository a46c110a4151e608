"""How a folder of releases stands: not there, empty, broken, stale or well, and which it is.

Its generation changes with any file that appears or goes; folders alone are looked at, as a file
that appears or goes changes the time of its folder.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Final

import duckdb
import pandas as pd
import pyarrow as pa

from aggregator.releases.release_files import MarkUnreadable
from aggregator.releases.releases import QueryRefused
from aggregator.releases.window_files import NoStore, WindowTwice, folders_of, need_store
from analytics import FleetReleases, RollupPeriod
from analytics.release_source import FolderSource
from analytics.spent_budget import SeriesTask
from pages.svg import length_said, moment_said
from pages.wording import counted
from transport.files.own_names import passed_over
from transport.process.printable import first_line, printable
from wire.task import DEMO_DOMAIN

EVERY_S: Final = 1.0
_END_S: Final = 5.0  # so long the end of a look is waited for
_LATE_WINDOWS: Final = 3
_LATE_S: Final = 120.0
_LOG: Final = logging.getLogger("pointillist.web")
_KNOWN_GONE: Final = 256
NO_STORE: Final = "none"  # the generation of what is not there, or cannot be read

UNFIT: Final = (KeyError, TypeError, ValueError, ArithmeticError)
"""How rows show that no Leader writes: a NULL where there is none, a name of no catalogue."""
FAILURES: Final = (
    QueryRefused, MarkUnreadable, OSError, duckdb.Error, pa.ArrowException, *UNFIT,
)  # fmt: skip
"""How a store that is broken or changed beneath a reader shows."""


class StoreState(StrEnum):
    """How a store stands."""

    LOADING = "loading"
    EMPTY = "empty"
    BROKEN = "error"
    STALE = "stale"
    WELL = "well"


@dataclass(frozen=True, slots=True)
class SeriesState:
    """A series' newest window, seconds; whom it is for; epsilon of its task, if released."""

    name: str
    domain: str
    start_s: float
    window_s: float
    epsilon: float | None = None

    @property
    def end_s(self) -> float:
        return self.start_s + self.window_s

    @property
    def late_s(self) -> float:
        """The moment from which on its next window is overdue."""
        return self.end_s + _LATE_WINDOWS * self.window_s + _LATE_S


@dataclass(frozen=True, slots=True)
class StoreStanding:
    """A generation of the store and what is known of it; `detail` says what is wrong.

    covered_s   seconds that the released windows of the shortest series cover
    played      what a simulation says of the fleet that it wrote; "" where none wrote the folder
    """

    generation: str
    state: StoreState
    detail: str
    series: tuple[SeriesState, ...] = ()
    covered_s: float = 0.0
    played: str = ""

    @property
    def newest_s(self) -> float:
        """When the newest of the shortest windows ended, unix seconds; 0 where there is none."""
        shortest = min((one.window_s for one in self.series), default=0.0)
        return max((one.end_s for one in self.series if one.window_s == shortest), default=0.0)

    @property
    def simulated(self) -> bool:
        return bool(self.played) or any(one.domain == DEMO_DOMAIN for one in self.series)

    @property
    def readable(self) -> bool:
        return self.state in {StoreState.WELL, StoreState.STALE}


class StoreWatch:
    """Looks at a folder once a second, and brings its roll-ups up to date where it changed.

    rollups   folder of the roll-ups: the store itself is never written
    now       the clock, unix seconds
    tasks     what series ask of the budget, as far as that is known
    """

    def __init__(
        self,
        folder: Path,
        rollups: Path,
        now: Callable[[], float] = time.time,
        tasks: Sequence[SeriesTask] = (),
    ) -> None:
        self.folder = folder
        self.tasks = tasks
        self._rollups = rollups
        self._now = now
        self._lock = Lock()
        self._looked_s: float | None = None
        self._follower: Thread | None = None
        self._closed = Event()
        self._standing = _LOADING
        self._gone_s: dict[str, float] = {}
        self._source: FolderSource | None = None
        self._fleet: FleetReleases | None = None

    def standing(self) -> StoreStanding:
        """Say how the store stands; who asks while it is looked at gets what stood before."""
        if self._follower is None:
            self._look_if_due()
        return self._aged(self._standing)

    def _look_if_due(self) -> None:
        due = self._looked_s is None or time.monotonic() - self._looked_s >= EVERY_S
        if due and self._lock.acquire(blocking=False):
            try:
                before, self._standing = self._standing.generation, self._look()
                self._looked_s = time.monotonic()
                if before != self._standing.generation:
                    self._gone_s[before] = self._looked_s
                    if len(self._gone_s) > _KNOWN_GONE:
                        self._gone_s.pop(next(iter(self._gone_s)))
            finally:
                self._lock.release()

    def gone_s(self, generation: str) -> float | None:
        """Say when the next one was first seen, by the monotonic clock; None: long ago or never."""
        return self._gone_s.get(generation)

    def fleet(self) -> FleetReleases:
        """Give the released numbers. Raises FileNotFoundError where the folder is not there."""
        if self._fleet is None:
            raise FileNotFoundError(f"no folder of releases at {self.folder}")
        return self._fleet

    def follow(self) -> None:
        """Look by a thread of its own from now on, so that nobody who asks waits for it."""
        self._follower = Thread(target=self._following, name="store-watch", daemon=True)
        self._follower.start()

    def _following(self) -> None:
        while not self._closed.is_set():
            self._look_if_due()
            self._closed.wait(EVERY_S / 2)

    def close(self) -> None:
        """Look no more, and let the store go; a long look is left to end with the process."""
        self._closed.set()
        if self._follower is not None:
            self._follower.join(_END_S)
        if self._lock.acquire(timeout=_END_S):
            try:
                if self._source is not None:
                    self._source.close()
                self._source = self._fleet = None
            finally:
                self._lock.release()

    def _look(self) -> StoreStanding:
        try:
            need_store(self.folder)
            folders = folders_of(self.folder)
            told = "".join(f"{path} {path.stat().st_mtime_ns}\n" for path in folders)
            generation = sha256(told.encode(errors="surrogateescape")).hexdigest()[:16]
            if generation == self._standing.generation:
                return self._standing
            if self._source is None:
                self._source = FolderSource(self.folder, self._rollups, max_age_s=math.inf)
                # Price list and catalogue are read once, not for each page.
                self._fleet = FleetReleases(self._source, tasks=self.tasks)
            self._source.refresh()
            mark = self._source.mark()
            played = "" if mark is None else mark.fleet
            standing = replace(_read(self._source, generation), played=played)
        except NoStore as error:
            self._source = self._fleet = None
            if error.others:
                return StoreStanding(NO_STORE, StoreState.BROKEN, unreadable(error))
            detail = (
                f"There is no store at {self.folder} yet: the Leader makes it as it starts, and "
                "releases are shown here once they are there."
            )
            return StoreStanding(NO_STORE, StoreState.EMPTY, detail)
        except Exception as error:  # noqa: BLE001  (a thread that ended would leave pages waiting)
            return StoreStanding(NO_STORE, StoreState.BROKEN, unreadable(error))
        if standing.state is StoreState.WELL and (others := passed_over(self.folder)):
            said = f"Passed over in the store, named in the log: {counted(len(others), 'name')} "
            standing = replace(standing, detail=f"{said}that no Leader gives.")
        return standing

    def _aged(self, standing: StoreStanding) -> StoreStanding:
        """Tell whether a store that is well is overdue by now."""
        late = [one for one in standing.series if self._now() > one.late_s]
        if standing.state is not StoreState.WELL or not late:
            return standing
        worst = min(late, key=lambda one: one.window_s)
        said = (
            f"The newest window of {worst.name} ended at {moment_said(worst.end_s)} UTC, "
            f"and one is expected every {length_said(worst.window_s)}."
        )
        return replace(standing, state=StoreState.STALE, detail=said)


_LOADING: Final = StoreStanding(
    "loading", StoreState.LOADING,
    "The store is being read for the first time; the page comes by itself.",
)  # fmt: skip


def _read(source: FolderSource, generation: str) -> StoreStanding:
    parts = [source.outcomes(period) for period in (RollupPeriod.WEEK, RollupPeriod.EIGHT_WEEKS)]
    ended = pd.concat([part[part["outcome"] != "rejected"] for part in parts], ignore_index=True)
    if ended.empty:
        said = "The store is there and holds no release yet: the first one appears here."
        return StoreStanding(generation, StoreState.EMPTY, said)
    series = tuple(_series(str(name), rows) for name, rows in ended.groupby("series"))
    shortest = min(series, key=lambda one: one.window_s).name
    released = parts[-1][parts[-1]["outcome"] == "released"]
    covered = released[released["series"] == shortest].groupby("cohort")["covered_s"].sum()
    covered_s = float(covered.max()) if len(covered) else 0.0
    return StoreStanding(generation, StoreState.WELL, "", series, covered_s)


def _series(name: str, rows: pd.DataFrame) -> SeriesState:
    newest = rows.sort_values("until").iloc[-1]
    window_s = float(newest["covered_s"] / newest["windows"])
    domains = [domain for domain in rows["domain"] if isinstance(domain, str)]
    end_s = pd.Timestamp(newest["until"]).timestamp()
    epsilon = rows["epsilon"].max()
    return SeriesState(
        name, domains[-1] if domains else "", end_s - window_s, window_s,
        None if pd.isna(epsilon) else float(epsilon),
    )  # fmt: skip


def unreadable(error: Exception) -> str:
    """Say that a store cannot be read, in one line; of unfit rows the log has the whole."""
    said = first_line(error)
    if isinstance(error, NoStore | WindowTwice):
        said = printable(str(error))
    elif isinstance(error, OSError) and error.strerror and error.filename is not None:
        said = printable(f"{os.fsdecode(error.filename)}: {error.strerror}")
    if not isinstance(error, FAILURES) or type(error) in UNFIT:
        _LOG.warning("rows that cannot be shown", exc_info=error)
        said = f"rows in it are not as a Leader writes them: {type(error).__name__}"
    return f"The store cannot be read now ({said}). Numbers come back here once it can."
