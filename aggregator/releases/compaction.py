"""Put the closed days of a folder of releases into packs, and take out what has become too old.

A crash at any step leaves each window readable once: the pack of the next generation appears whole
(a folder, renamed), and only then what it stands for is removed. What a crash leaves over, the next
compaction removes. One at a time: the folder is locked meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from aggregator.protocol.interfaces import Checkpoint, no_checkpoint

from . import packs, release_files
from .cause_files import CAUSE_SCHEMA
from .cause_files import FOLDER as CAUSES_FOLDER
from .coarsening import CauseTables, Coarsening, uncorrected
from .packs import Pack
from .release_files import make_public, public_folder, sync_folder
from .window_files import COARSE, LOCK, PACKED, Single, all_singles, day_of, series_of

_TEXTS: Final = ("series", "section", "cell", "unit", "kind", "domain", "rejections")


class CompactionUnderWay(OSError):
    """Another process compacts this folder."""


@dataclass(slots=True)
class Compacted:
    """What was done.

    windows     files of single windows that went into a pack
    packs       packs written
    removed     windows removed for their age
    """

    windows: int = 0
    packs: int = 0
    removed: int = 0


@dataclass(frozen=True, slots=True)
class PackRows:
    """Windows on their way into a pack.

    members         of `MEMBER_SCHEMA`
    cells           rows of `CELL_SCHEMA`, in any order; or ready row groups of cells that the pack
                    does not have yet
    plain           rows of the files as they are
    """

    members: pa.Table
    cells: pa.Table | Iterable[pa.Table] | None = None
    plain: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class RollUps:
    """What retention asks of whoever makes roll-ups, which outlive the windows.

    refresh     brings them up to date; calls what it is given between steps; raises OSError
    have        whether they have every window of a series' days, first to last: else none of these
                is removed
    """

    refresh: Callable[[Callable[[], None]], None]
    have: Callable[[str, date, date], bool]


NO_ROLL_UPS: Final = RollUps(refresh=lambda _: None, have=lambda *_: True)
"""Nobody makes any: what is old goes."""


@dataclass(slots=True)
class Compaction:
    """One folder of releases, with its causes and suppressed windows.

    keep_days       series -> days after which its windows are removed; others stay
    roll_ups        asked before
    checkpoint      is told of each step, for tests
    causes_of       makes root-cause tables of released cells: see `Coarsening`; None: who compacts
                    does not know the detector's rates, and leaves tables of before to the Leader
    """

    folder: Path
    keep_days: Mapping[str, int] = field(default_factory=dict)
    roll_ups: RollUps = NO_ROLL_UPS
    checkpoint: Checkpoint = no_checkpoint
    causes_of: CauseTables | None = uncorrected

    def run(self, today: date) -> Compacted:
        """Pack every day before this one, and remove what is too old.

        Files of before counts were coarse are written anew first.
        today   UTC; its own windows stay as they are
        Raises  CompactionUnderWay, WindowTwice, OSError; where roll-ups cannot be made, days are
                packed first
        """
        done = Compacted()
        with _locked(self.folder):
            for root, schema in self._roots():
                self._clear(root)
                if not self._waits(root, schema):
                    self._make_coarse(root, schema)
            failed = self._roll_up()
            for root, schema in self._roots():
                if failed is None:
                    self._remove_old(root, today, done)
                if self._waits(root, schema):
                    continue
                packs.list_folder(root)  # a window that is there twice would be packed twice
                closed = [single for single in all_singles(root) if single.day < today]
                for _, singles in groupby(closed, key=lambda single: (single.series, single.day)):
                    self._pack_day(root, schema, list(singles), done)
        if failed is not None:
            raise failed
        return done

    def _roll_up(self) -> OSError | None:
        """Bring roll-ups up to date where windows may be removed; give why that failed."""
        if self.keep_days:
            try:
                self.roll_ups.refresh(lambda: self.checkpoint("periods rolled up"))
            except OSError as error:
                return error
        return None

    def add(self, part: str, series: str, period: str, rows: PackRows) -> None:
        """Put windows that never had files of their own into a pack, none of them known yet.

        part    "" for releases, else the folder of causes or of suppressed windows
        """
        public_folder(self.folder)
        with _locked(self.folder):
            packs.mark_new(self.folder)
            schema = dict(self._roots())[self.folder / part]
            self._write(self.folder / part, series, period, rows, schema)

    def _roots(self) -> Iterator[tuple[Path, pa.Schema]]:
        yield self.folder, release_files.SCHEMA
        yield self.folder / release_files.SUPPRESSED_FOLDER, release_files.SUPPRESSED_SCHEMA
        yield self.folder / CAUSES_FOLDER, CAUSE_SCHEMA

    def _waits(self, root: Path, schema: pa.Schema) -> bool:
        """Whether root-cause tables of before wait for the Leader, who corrects them."""
        if self.causes_of is not None or not schema.equals(CAUSE_SCHEMA):
            return False
        exact = (not pack.is_coarse for pack in packs.all_packs(root))
        return any(exact) or any(
            "n_bound" not in pq.read_schema(single.path).names for single in all_singles(root)
        )

    def _clear(self, root: Path) -> None:
        for leftover in (root / PACKED).glob("series=*/period=*/.generation=*"):
            if leftover.is_dir():
                shutil.rmtree(leftover)
        for pack in list(packs.all_packs(root, superseded=True)):
            _drop(pack)

    def _make_coarse(self, root: Path, schema: pa.Schema) -> None:
        if not root.is_dir():
            return
        # A Leader of before may have come back in between.
        if (root / COARSE).exists() and all(p.is_coarse for p in packs.all_packs(root)):
            return
        coarsening = Coarsening(self.folder, schema, self.causes_of or uncorrected)
        for single in list(all_singles(root)):
            if coarsening.single(single):
                self.checkpoint("file made coarse")
        for pack in list(packs.all_packs(root)):
            if not pack.is_coarse:
                fill = partial(coarsening.pack, pack)
                self._write_generation(root, pack.series, pack.period, fill)
        (root / COARSE).touch()
        make_public(root / COARSE)

    def _pack_day(
        self, root: Path, schema: pa.Schema, singles: Sequence[Single], done: Compacted
    ) -> None:
        """Put one day of a series into its packs; then its files are no longer needed."""
        waiting = [one for one in singles if not packs.is_packed(root, one.path)]
        for one in waiting:  # a Leader of before may have come back in between
            Coarsening(self.folder, schema, self.causes_of or uncorrected).single(one)
        for period, rows in _read(waiting, schema):
            self._write(root, singles[0].series, period, rows, schema)
            done.packs += 1
        for single in singles:
            single.path.unlink(missing_ok=True)
        done.windows += len(waiting)
        self.checkpoint("files removed")
        with suppress(OSError):  # a late window has just come
            singles[0].path.parent.rmdir()

    def _write(
        self, root: Path, series: str, period: str, rows: PackRows, schema: pa.Schema
    ) -> None:
        before = packs.active_pack(root, series, period)
        fill = partial(_write_files, before=before, rows=rows, schema=schema)
        self._write_generation(root, series, period, fill)

    def _write_generation(
        self, root: Path, series: str, period: str, fill: Callable[[Path], None]
    ) -> None:
        before = packs.active_pack(root, series, period)
        number = 1 if before is None else before.generation + 1
        target = packs.period_folder(root, series, period) / f"generation={number:06d}"
        unfinished = target.with_name(f".{target.name}.partial")
        public_folder(target.parent)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        fill(unfinished)
        make_public(unfinished)
        self.checkpoint("pack written")
        unfinished.rename(target)
        sync_folder(target.parent)
        self.checkpoint("pack renamed")
        if before is not None:
            _drop(before)
            self.checkpoint("pack before removed")

    def _remove_old(self, root: Path, today: date, done: Compacted) -> None:
        """Remove packs and files all of whose windows are too old, if their roll-ups exist."""
        for pack in list(packs.all_packs(root)):
            if self._is_too_old(pack.series, *pack.days, today):
                done.removed += len(pack.members)
                _drop(pack)
        for single in list(all_singles(root)):
            if self._is_too_old(single.series, single.day, single.day, today):
                done.removed += 1
                single.path.unlink(missing_ok=True)

    def is_too_old(self, single: Path, today: date) -> bool:
        """Whether the file of a window would be removed today."""
        day = day_of(single)
        return self._is_too_old(series_of(single), day, day, today)

    def _is_too_old(self, series: str, first: date, last: date, today: date) -> bool:
        days = self.keep_days.get(series)
        if days is None or (today - last).days <= days:  # of any size: no date is so old
            return False
        return self.roll_ups.have(series, first, last)


def _drop(pack: Pack) -> None:
    """Remove a pack: for readers it goes as a whole."""
    gone = pack.path.with_name(f".{pack.path.name}.removed")
    pack.path.rename(gone)
    shutil.rmtree(gone)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CompactionUnderWay(f"{folder}: another process compacts it") from None
        yield
    finally:
        os.close(descriptor)


def _read(singles: Sequence[Single], schema: pa.Schema) -> Iterator[tuple[str, PackRows]]:
    """Read files of one day, by the period whose pack takes them."""
    by_period: dict[str, list[tuple[Single, pa.Table]]] = {}
    for single in singles:
        table = pq.read_table(single.path, partitioning=None)
        window_s = table["window_s"][0].as_py() if table.num_rows else None
        by_period.setdefault(packs.period_of(single.day, window_s), []).append((single, table))
    for period, read in by_period.items():
        members = pa.Table.from_pylist([_member(*one) for one in read], packs.MEMBER_SCHEMA)
        with_basis = [table for _, table in read if _has_basis(table)]
        others = [table for _, table in read if not _has_basis(table)]
        yield (
            period,
            PackRows(members, _encoded(with_basis, packs.CELL_SCHEMA), _encoded(others, schema)),
        )


def _has_basis(table: pa.Table) -> bool:
    """Whether all numbers follow from what a release came with; older ones came without."""
    return set(release_files.BASIS) <= set(table.schema.names) and table["steps"].null_count == 0


def _member(single: Single, table: pa.Table) -> dict[str, object]:
    first = table.slice(0, 1).to_pylist()[0] if table.num_rows else {}
    return {
        "name": single.path.name,
        "cohort": single.cohort,
        "window_start": single.window_start,
        "window_s": first.get("window_s"),
        "n_hosts": first.get("n_hosts"),
        "settled_at": first.get("settled_at", first.get("released_at")),
        "n_bound": first.get("n_bound"),
    }


def _encoded(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table | None:
    """Join tables, texts as dictionaries: a day of minutes has a million rows."""
    if not tables:
        return None
    fields = [
        field.with_type(pa.dictionary(pa.int32(), pa.string())) if field.name in _TEXTS else field
        for field in schema
    ]
    wanted = pa.schema(fields)
    return pa.concat_tables([packs.cast_to(table, wanted) for table in tables]).unify_dictionaries()


def _write_files(folder: Path, before: Pack | None, rows: PackRows, schema: pa.Schema) -> None:
    """Write what a pack holds: the rows of the pack before, and the new ones."""
    for name, kind, fresh in (
        (packs.CELLS, packs.CELL_SCHEMA, rows.cells),
        (packs.PLAIN, schema, rows.plain),
    ):
        old = [before.path / name] if before is not None and (before.path / name).exists() else []
        if old or fresh is not None:
            packs.write_merged(folder / name, kind, old, fresh)
    members = rows.members
    if before is not None:
        members = pa.concat_tables(
            [pq.read_table(before.path / packs.MEMBERS, partitioning=None), members]
        )
    pq.write_table(members.sort_by("window_start"), folder / packs.MEMBERS, compression="zstd")
    make_public(folder / packs.MEMBERS)
