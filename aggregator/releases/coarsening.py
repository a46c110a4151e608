"""Write files of before counts were coarse anew, each whole under its own name.

What a crash leaves over is written by the next run: a file or pack counts as done by its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from aggregator.statistics.causes import CAUSE_SECTIONS, CauseTable

from . import packs, release_files
from .cause_files import CAUSE_SCHEMA, RELEASED_COLUMNS, Record, cause_columns, tables_of
from .exact_counts import (
    coarse_hosts_sql,
    coarse_releases_sql,
    release_on_grid_sql,
    release_steps,
)
from .packs import Pack, cast_to
from .release_files import make_public, utc, write_whole
from .releases import DERIVED, exact_cells_sql, literal, open_duckdb, query
from .window_files import Single

CauseTables = Callable[[Iterable[Record]], list[CauseTable]]


def uncorrected(released: Iterable[Record]) -> list[CauseTable]:
    return tables_of(released, None, None)


_WINDOW: Final = ["cohort", "window_start"]


class Coarsening:
    """Files of one folder: of releases, of causes or of suppressed windows.

    causes_of   makes root-cause tables of released cells: those of before are made anew
    """

    def __init__(self, releases: Path, schema: pa.Schema, causes_of: CauseTables) -> None:
        self._releases, self._schema, self._causes_of = releases, schema, causes_of

    def single(self, single: Single) -> bool:
        """Write the file of one window anew; say whether it was one of before."""
        if "n_bound" in pq.read_schema(single.path).names:
            return False
        rows = self.table(single.series, pq.read_table(single.path, partitioning=None))
        write_whole(rows, single.path)
        return True

    def table(self, series: str, rows: pa.Table) -> pa.Table:
        """Give the rows of whole windows, by coarse counts."""
        if self._schema.equals(CAUSE_SCHEMA):
            return self._causes(series, rows)
        with open_duckdb() as database:
            asked = cast_to(rows, self._schema)
            database.register("asked", asked.append_column("place", pa.array(range(len(rows)))))
            coarse = (
                coarse_hosts_sql("SELECT * FROM asked", "n_min")
                if self._schema.equals(release_files.SUPPRESSED_SCHEMA)
                else coarse_releases_sql("SELECT * FROM asked")
            )
            found = database.sql(coarse).order("place").to_arrow_table()
        return cast_to(found, self._schema)

    def _causes(self, series: str, rows: pa.Table) -> pa.Table:
        wanted = {(row["cohort"], row["window_start"]) for row in rows.to_pylist()}
        if not wanted:
            return cast_to(rows, self._schema)
        first, last = (choose(start for _, start in wanted) for choose in (min, max))
        before = first - timedelta(seconds=max(rows["window_s"].to_pylist()))
        sections = ", ".join(map(literal, CAUSE_SECTIONS))
        released = query(
            f"SELECT {RELEASED_COLUMNS} FROM released WHERE series = {literal(series)} "  # noqa: S608
            f"AND section IN ({sections}) AND window_start BETWEEN '{before}' AND '{last}'",
            self._releases,
        )
        made = [
            table
            for table in self._causes_of(released.to_dict("records"))
            if (table.cohort, utc(table.window_start_s)) in wanted
        ]
        return cause_columns(made)

    def pack(self, pack: Pack, target: Path) -> None:
        """Write what a pack of before holds into the folder of its next generation."""
        written = []
        if (cells := pack.path / packs.CELLS).exists():
            groups = self._row_groups(cells, pack.series)
            packs.write_merged(target / packs.CELLS, packs.CELL_SCHEMA, [], groups)
            written.append(packs.CELLS)
        if (plain := pack.path / packs.PLAIN).exists():
            rows = self.table(pack.series, pq.read_table(plain, partitioning=None))
            packs.write_merged(target / packs.PLAIN, self._schema, [], rows)
            written.append(packs.PLAIN)
        counts: dict[tuple[int, datetime], tuple[int, int]] = {}
        for name in written:
            columns = [*_WINDOW, "n_hosts", "n_bound"]
            with pq.ParquetFile(target / name) as file:
                for number in range(file.num_row_groups):
                    group = file.read_row_group(number, columns)
                    for one in group.group_by(columns).aggregate([]).to_pylist():
                        key = one["cohort"], one["window_start"]
                        counts[key] = one["n_hosts"], one["n_bound"]
        members = pq.read_table(pack.path / packs.MEMBERS, partitioning=None).to_pylist()
        for one in members:
            key = one["cohort"], one["window_start"]
            one["n_hosts"], one["n_bound"] = counts.get(key, (None, 0))
        known = pa.Table.from_pylist(members, packs.MEMBER_SCHEMA)
        pq.write_table(known, target / packs.MEMBERS, compression="zstd")
        make_public(target / packs.MEMBERS)

    def _row_groups(self, cells: Path, series: str) -> Iterator[pa.Table]:
        """Give the row groups of a pack's cells, in the order that they have."""
        named = f"SELECT *, {literal(series)} AS series FROM"
        with open_duckdb() as database, pq.ParquetFile(cells) as file:
            beside = _derived(
                f"({named} read_parquet({literal(str(cells))}, hive_partitioning = false))"
            )
            for name, sql in release_steps(beside).items():
                database.execute(f"CREATE TEMP TABLE {name} AS {sql}")
            for number in range(file.num_row_groups):
                group = file.read_row_group(number)
                places = pa.array(range(group.num_rows))
                database.register("asked", group.append_column("place", places))
                coarse = release_on_grid_sql(_derived(f"({named} asked)"))
                rows = database.sql(
                    f"SELECT coarse.* FROM ({coarse}) AS coarse "  # noqa: S608
                    "JOIN asked USING (cohort, section, cell, window_start) ORDER BY asked.place"
                ).to_arrow_table()
                yield cast_to(rows, packs.CELL_SCHEMA)


def _derived(cells: str) -> str:
    return DERIVED.format(packed=exact_cells_sql(f"FROM {cells}"))
