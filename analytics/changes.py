"""What changed from one period to another: differences with errors, at one false-discovery rate."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd
import pyarrow as pa

from aggregator.releases.releases import Meanings
from aggregator.statistics.discoveries import FALSE_DISCOVERY_RATE, q_values
from aggregator.statistics.ratios import normal_quantile

from .sql import CELL_MEANINGS

KEY: Final = ("series", "cohort", "section", "cell")
CHANGE_MEANINGS: Final[Meanings] = {
    **{name: CELL_MEANINGS[name] for name in (*KEY, "model", "measure", "name", "kind")},
    "unit": (pa.string(), "unit of before, after and change: `share`, of means their own"),
    "before_start": (pa.timestamp("us"), "first moment of the period before, UTC"),
    "after_start": (pa.timestamp("us"), "first moment of the later period, UTC"),
    "before": (pa.float64(), "share in the period before; of a mean, the mean of its hosts"),
    "after": (pa.float64(), "the same in the later period"),
    "change": (pa.float64(), "after less before"),
    "standard_error": (pa.float64(), "of change, on the side toward zero"),
    "low": (pa.float64(), "lower end of the 95 % interval of change"),
    "high": (pa.float64(), "upper end of that interval"),
    "ratio": (pa.float64(), "after / before; NULL where before is not told from zero"),
    "bias_bound": (
        pa.float64(),
        "indicators: what change may be off by, either way, beyond the interval",
    ),
    "q_value": (
        pa.float64(),
        "smallest false-discovery rate at which the cell is told to have changed in its section",
    ),
    "told": (pa.bool_(), "whether it is told to have changed"),
    "seen_after_s": (
        pa.float64(),
        "about how long such a step takes to be told of the last minutes by these errors, seconds",
    ),
    "suppressed": (pa.bool_(), "whether there is no number in one of the periods"),
    "coverage_before": (pa.float64(), "released part of the period before"),
    "coverage_after": (pa.float64(), "released part of the later period"),
    "hosts_before": (pa.float64(), "accepted hosts of a window in the period before, mean"),
    "hosts_after": (pa.float64(), "the same in the later period"),
}
"""Column -> Arrow type and meaning of the view `changes`, in order."""

CHANGE_COLUMNS: Final = tuple(CHANGE_MEANINGS)

BEFORE: Final = 6
"""So many times as long as the last minutes are those that they are compared with."""
MINUTE_ERRORS: Final = 4.75
"""Standard errors of a change of the last minutes that is told: each minute asks anew, and noise
alone gets as far twice in a million cells."""

OF_SHARE: Final = "share"  # unit of a change of shares: 0.01 is one percentage point


def changes(before: pd.DataFrame, after: pd.DataFrame, *, errors: float = 0.0) -> pd.DataFrame:
    """Compare two periods cell by cell.

    before, after   frames of cells of one period each, columns as `sql.CELL_MEANINGS`
    errors          standard errors that a change which is told has at least
    Returns         a row for each cell that both have, CHANGE_COLUMNS: of means the mean of a host
                    in its unit, of all others the share. `low` and `high` are the 95 % interval of
                    `change`; `ratio` is after / before where before is told from zero
    Source          Zou and Donner 2008 for the interval; Benjamini and Yekutieli 2001 for
                    `q_value`, two-sided, over the cells of one section, since shares of one whole
                    share its error
    """
    left, right = _measured(before), _measured(after)
    rows = left.merge(right, on=list(KEY), suffixes=("_before", "_after"))
    rows["before"], rows["after"] = rows["at_before"], rows["at_after"]
    rows["change"] = rows["after"] - rows["before"]
    down = np.hypot(rows["after"] - rows["least_after"], rows["most_before"] - rows["before"])
    up = np.hypot(rows["most_after"] - rows["after"], rows["before"] - rows["least_before"])
    rows["low"], rows["high"] = rows["change"] - down, rows["change"] + up
    # The arm that would have to reach zero is the error of being told from it.
    toward_zero = np.where(rows["change"] > 0, down, up)
    rows["standard_error"] = toward_zero / normal_quantile()
    told_before = rows["told_before"].to_numpy(bool)
    ratio = np.divide(
        rows["after"], rows["before"], out=np.full(len(rows), np.nan), where=told_before
    )
    rows["ratio"] = ratio
    rows["bias_bound"] = np.maximum(rows["bias_before"], rows["bias_after"])
    rows["suppressed"] = rows["change"].isna()
    rows["q_value"] = _judged(rows)
    size = rows["change"].abs()
    far = size >= errors * rows["standard_error"]
    rows["told"] = (rows["q_value"] <= FALSE_DISCOVERY_RATE) & far
    # Of w seconds against BEFORE times as many, MINUTE_ERRORS standard errors: solved for w.
    error = (rows["most_after"] - rows["least_after"]) / (2 * normal_quantile())
    rows["seen_after_s"] = (
        (MINUTE_ERRORS * error / size.where(size > 0)) ** 2 * (1 + 1 / BEFORE)
    ) * rows["covered_s_after"]
    same = {f"{name}_after": name for name in ("model", "measure", "name", "kind", "unit")}
    rows = rows.rename(
        columns={**same, "start_before": "before_start", "start_after": "after_start"}
    )
    return rows[list(CHANGE_COLUMNS)].sort_values(["section", "q_value", "cell"], ignore_index=True)


def _measured(frame: pd.DataFrame) -> pd.DataFrame:
    """Take what is compared of each cell: the share, of a mean the value."""
    mean = frame["kind"] == "mean"
    return frame[[*KEY, "model", "measure", "name", "kind", "coverage", "hosts", "told"]].assign(
        unit=frame["unit"].where(mean, OF_SHARE),
        start=frame["period_start"],
        at=frame["value"].where(mean, frame["share"]).astype(float),
        least=frame["low"].where(mean, frame["share_low"]).astype(float),
        most=frame["high"].where(mean, frame["share_high"]).astype(float),
        covered_s=frame["coverage"] * frame["period_s"],
        bias=(frame["bias_bound"] / frame["host_windows"]).fillna(0.0),
    )


def _judged(rows: pd.DataFrame) -> pd.Series:
    """Give q-values of both directions, each section of each series and cohort a family."""
    found = pd.Series(np.nan, index=rows.index)
    known = rows[~rows["suppressed"]]
    for _, family in known.groupby(["series", "cohort", "section"], dropna=False):
        errors = family["standard_error"].to_numpy(float)
        size = np.abs(family["change"].to_numpy(float))
        # Two-sided: twice the one-sided chance, and so twice the rate.
        found[family.index] = np.minimum(2 * q_values(size, errors, independent=False), 1.0)
    return found
