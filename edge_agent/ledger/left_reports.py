"""What left this host: a row for each report, for its owner, beside the ledger's entry, for five
weeks; nothing of the vector, of a mask or of a key is in it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Final

from wire.envelope import unwrap
from wire.report import KeptReport, Report
from wire.topics import REPORTS, TOPICS

from .ledger_db import connect_readonly, translated
from .ledger_records import HostEntry, SealedRecord

KEPT_S: Final = 35 * 86_400
MOST_REPORTS: Final = 60_000
"""Five weeks of a minute, an hour, a day and a week are 51,300 rows, some 11 MiB."""
_LONGEST: Final = next(topic.max_bytes for topic in TOPICS if topic.name == REPORTS)

_COLUMNS: Final = (
    "host, epoch_id, report_id, tag_h, task_id, series, cohort, window_start, window_end, bytes, "
    "sealed_s, fate, fate_s, log"
)
"""In the order of the fields of `LeftReport`."""


class Fate(StrEnum):
    WAITS = "waits"
    SENT = "sent"
    EXPIRED = "expired"
    TOO_LONG = "too_long"


@dataclass(frozen=True, slots=True)
class LeftReport(KeptReport):
    """One report as it was sealed, read off the very bytes that leave; size without its envelope.
    fate_s, log   when and where it went, or it was given up; None and "" while it waits
    """

    window_end: int
    size_bytes: int
    sealed_s: int
    fate: Fate = Fate.WAITS
    fate_s: int | None = None
    log: str = ""


@dataclass(frozen=True, slots=True)
class Gone:
    fate: Fate
    at_s: int
    log: str = ""


@dataclass(frozen=True, slots=True)
class LeftView:
    """Everything that is kept of what left; the signed tasks, as they came, by task_id."""

    reports: tuple[LeftReport, ...] = ()
    tasks: Mapping[bytes, bytes] = field(default_factory=lambda: MappingProxyType({}))


def left_report(spent: HostEntry, record: SealedRecord, now_s: int) -> LeftReport:
    """Describe a sealed report. Raises ReportRejected for bytes that are none: our own bug."""
    _kind, core = unwrap(record.value, _LONGEST)
    report, entry = Report.decode(core), spent.entry
    return LeftReport(
        bytes(report.host_id), bytes(report.epoch_id), bytes(report.header.report_id),
        bytes(report.tag_h), bytes(report.task_id), entry.series, report.header.cohort,
        entry.start, entry.end, len(core), now_s,
    )  # fmt: skip


class LeftReports:
    """The rows, written inside the ledger's own transactions."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def insert(self, reports: Iterable[LeftReport], spool_ids: Sequence[int]) -> None:
        self._db.executemany(
            f"INSERT OR REPLACE INTO left_reports ({_COLUMNS}, spool_id) "  # noqa: S608
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(*astuple(report), spool) for report, spool in zip(reports, spool_ids, strict=True)],
        )

    def settle(self, spool_ids: Sequence[int], gone: Gone) -> None:
        """Note what became of reports; ids of epochs are no report's."""
        self._db.executemany(
            "UPDATE left_reports SET fate = ?, fate_s = ?, log = ?, spool_id = NULL "
            "WHERE spool_id = ?",
            [(gone.fate.value, gone.at_s, gone.log, spool_id) for spool_id in spool_ids],
        )

    def expire(self, now_s: int) -> None:
        """Note the reports that wait past the time at which anybody takes them."""
        expired = self._db.execute("SELECT id FROM spool WHERE expires_s <= ?", (now_s,))
        self.settle([row[0] for row in expired.fetchall()], Gone(Fate.EXPIRED, now_s))

    def keep_tasks(self, signed: Mapping[bytes, bytes]) -> None:
        self._db.executemany("INSERT OR IGNORE INTO tasks VALUES (?, ?)", signed.items())

    def prune(self, now_s: int) -> None:
        """Forget reports that are old or too many, and tasks that nothing names."""
        self._db.execute("DELETE FROM left_reports WHERE window_end < ?", (now_s - KEPT_S,))
        self._db.execute(
            "DELETE FROM left_reports WHERE window_end < (SELECT window_end FROM left_reports "
            "ORDER BY window_end DESC LIMIT 1 OFFSET ?)",
            (MOST_REPORTS - 1,),
        )
        self._db.execute(
            "DELETE FROM tasks WHERE task_id NOT IN (SELECT task_id FROM left_reports) "
            "AND task_id NOT IN (SELECT task_id FROM series)"
        )


def read_left(path: Path) -> LeftView:
    """Read what left; nothing where an earlier agent kept nothing. Raises LedgerRefused."""
    with closing(connect_readonly(path)) as db, translated():
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'left_reports'").fetchone():
            return LeftView()
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM left_reports ORDER BY window_end, series"  # noqa: S608
        )
        found = (LeftReport(*row) for row in rows)
        reports = tuple(replace(report, fate=Fate(report.fate)) for report in found)
        return LeftView(reports, dict(db.execute("SELECT task_id, signed FROM tasks")))
