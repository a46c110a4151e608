"""How released Parquet is laid out, for the store that writes it and for its readers."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa

from aggregator.statistics.discoveries import FALSE_DISCOVERY_RATE

MEANINGS: dict[str, tuple[pa.DataType, str]] = {
    "series": (pa.string(), "task series the release belongs to"),
    "cohort": (pa.int32(), "cohort, a static part of the fleet"),
    "window_start": (pa.timestamp("us"), "first moment of the window, UTC"),
    "window_s": (pa.int32(), "window length, seconds"),
    "section": (pa.string(), "catalogue section"),
    "cell": (pa.string(), "cell of the section, as the catalogue names it"),
    "unit": (pa.string(), "unit of value, standard_error, low and high"),
    "kind": (pa.string(), "mix, histogram, mean or indicators"),
    "value": (pa.float64(), "sum over the accepted hosts, noise included; may be negative"),
    "standard_error": (
        pa.float64(),
        "standard error of value: the noise, and the most rounding and choice among many can add",
    ),
    "low": (
        pa.float64(),
        (
            "lower end of the 95 % interval of value; of what hosts reported, which may be less "
            "than they had by bias_bound at most"
        ),
    ),
    "high": (pa.float64(), "upper end of that interval"),
    "share": (
        pa.float64(),
        "value as a fraction of what was measured, of hosts or of full scale; NULL: noise",
    ),
    "share_low": (pa.float64(), "lower end of the 95 % interval of share"),
    "share_high": (pa.float64(), "upper end of the 95 % interval of share"),
    "below_noise": (pa.bool_(), "value is under 2 standard errors"),
    "bias_bound": (
        pa.float64(),
        (
            "indicators: hosts that value may lack because hosts left some out, at most (one-sided "
            "95 %), beyond the interval; NULL: released before this was known"
        ),
    ),
    "n_hosts": (pa.int32(), "accepted hosts"),
    "epsilon": (pa.float64(), "epsilon of the task: one host, any 168 hours"),
    "delta": (pa.float64(), "delta of the task"),
    "domain": (pa.string(), "fleet, operator or demo: whom the task serves"),
    "released_at": (pa.timestamp("us"), "when the Leader unmasked the sum, UTC"),
    "rejections": (pa.string(), "JSON object: reason -> reports refused for this window"),
}
"""Column -> Arrow type and meaning, in order."""

BASIS: dict[str, pa.DataType] = {
    "steps": pa.int64(),
    "scale": pa.float64(),
    "variance": pa.float64(),
    "whole": pa.float64(),
    "whole_variance": pa.float64(),
    "covariance": pa.float64(),
    "sampling": pa.float64(),
}
"""What value, error, interval and share follow from (`statistics.CellBasis`): files have it beside
the columns that people read, and packs in their place."""

Q_VALUE = {
    "q_value": (
        pa.float64(),
        (
            "smallest false-discovery rate at which the row is told from zero, among the cells of "
            f"its section in this release; above {FALSE_DISCOVERY_RATE:g}: no number to quote"
        ),
    )
}
"""What the views `releases`, `latest` and `causes` add to the columns of their files."""

DATE = {"date": (pa.date32(), "day of window_start, UTC: the folder of the file")}
"""What the views have of where a file lies."""

SUPPRESSED_FOLDER = "suppressed"
"""Below the folder of releases: windows that ended without one."""

SUPPRESSED_MEANINGS: dict[str, tuple[pa.DataType, str]] = {
    "series": (pa.string(), "task series"),
    "cohort": (pa.int32(), "cohort, a static part of the fleet"),
    "window_start": (pa.timestamp("us"), "first moment of the window, UTC"),
    "window_s": (pa.int32(), "window length, seconds; NULL when the task is gone"),
    "version": (pa.int32(), "version of the task; NULL when the task is gone"),
    "reason": (pa.string(), "why there is no release"),
    "n_hosts": (pa.int32(), "hosts that had reported"),
    "n_min": (pa.int32(), "hosts that a release needs; NULL when the task is gone"),
    "settled_at": (pa.timestamp("us"), "when the Leader gave the window up, UTC"),
}
"""Column -> Arrow type and meaning, in order."""

SUPPRESSED_SCHEMA = pa.schema([(name, kind) for name, (kind, _) in SUPPRESSED_MEANINGS.items()])

SCHEMA = pa.schema([*((name, kind) for name, (kind, _) in MEANINGS.items()), *BASIS.items()])
COLUMNS = tuple(SCHEMA.names)


def release_path(folder: Path, series: str, cohort: int, start: datetime) -> Path:
    """Where the file of one release lies: hive-partitioned by series and date."""
    return (
        folder
        / f"series={quote(series, safe='')}"
        / f"date={start:%Y-%m-%d}"
        / f"{start:%Y%m%dT%H%M%SZ}-c{cohort}.parquet"
    )


def suppressed_path(
    folder: Path, series: str, cohort: int, start: datetime, version: int | None
) -> Path:
    """Where one suppressed window lies, partitioned as releases are; no file is written anew."""
    path = release_path(folder / SUPPRESSED_FOLDER, series, cohort, start)
    return path.with_name(f"{path.stem}-v{version or 0}.parquet")
