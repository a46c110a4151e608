"""Frames of cells as pages need them: windows like roll-ups, one cohort, one model, shares."""

from __future__ import annotations

import pandas as pd

from aggregator.statistics.discoveries import FALSE_DISCOVERY_RATE
from aggregator.statistics.ratios import normal_quantile
from analytics.sql import BY_LAUNCHES, LAUNCHES
from wire.catalogue import LEFT_OUT


class RowsUnfit(ValueError):
    """Rows as no Leader writes them; says which column of them holds what it may not."""


def without_null(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Give rows as they are. Raises RowsUnfit where one of these columns holds a NULL."""
    for column in columns:
        if nulls := int(rows[column].isna().sum()):
            raise RowsUnfit(
                "rows in it are not as a Leader writes them: "
                f"{column} is NULL in {nulls:,} of {len(rows):,}"
            )
    return rows


def as_cells(windows: pd.DataFrame, *, by_model: bool) -> pd.DataFrame:
    """Give released windows the columns of roll-ups. Raises RowsUnfit."""
    windows = without_null(windows, "cell", "window_s")
    found = windows[windows["cell"] != LEFT_OUT]
    parts = {cell: cell.split("/") for cell in found["cell"].unique()}
    measures = {cell: split[-2] if len(split) > 1 else "" for cell, split in parts.items()}
    named = {
        "name": {
            cell: split[-1] + (BY_LAUNCHES if measures[cell] == LAUNCHES else "")
            for cell, split in parts.items()
        },
        "measure": measures,
        "model": {cell: split[0] if by_model else "" for cell, split in parts.items()},
    }
    return found.assign(
        **{column: found["cell"].map(of) for column, of in named.items()},
        told=found["q_value"] <= FALSE_DISCOVERY_RATE,
        hosts=found["n_hosts"],
        coverage=1.0,
        windows=1,
        reason=None,
        period_start=found["window_start"],
        period_s=found["window_s"],
    )


def of_one_cohort(rows: pd.DataFrame) -> pd.DataFrame:
    """Take the rows of the first cohort: those of several would stand beside each other as one."""
    return rows if rows.empty else rows[rows["cohort"] == rows["cohort"].min()]


def of_model(
    cells: pd.DataFrame, model: str | None, only: frozenset[str] | None = None
) -> pd.DataFrame:
    """Take the rows of one model, and of some names."""
    if cells.empty:
        return cells
    if model is not None:
        cells = cells[cells["model"] == model]
    return cells if only is None else cells[cells["name"].isin(only)]


def with_shares(cells: pd.DataFrame) -> pd.DataFrame:
    """Give shares as a view's number: value, standard_error, low, high; amounts as `amount_*`."""
    if cells.empty:
        return cells
    amounts = {f"amount_{name}": cells[name] for name in ("value", "standard_error", "low", "high")}
    half = (cells["share_high"] - cells["share_low"]) / 2
    return cells.assign(
        **amounts, value=cells["share"], low=cells["share_low"], high=cells["share_high"],
        standard_error=half / normal_quantile(),
    )  # fmt: skip
