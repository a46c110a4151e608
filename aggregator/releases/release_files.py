"""How released Parquet is laid out, for the store that writes it and for its readers.

Readers under other users see a file whole or not at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from aggregator.protocol.released import PublishedWindow
from aggregator.statistics.discoveries import FALSE_DISCOVERY_RATE
from aggregator.statistics.statistics import CELL_ARRAYS, Cell

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
    "n_hosts": (pa.int32(), "accepted hosts, on a grid"),
    "n_bound": (pa.int32(), "how many hosts n_hosts may be off by"),
    "epsilon": (pa.float64(), "epsilon of the task: one host, any 168 hours"),
    "delta": (pa.float64(), "delta of the task"),
    "domain": (pa.string(), "fleet, operator or demo: whom the task serves"),
    "released_at": (pa.timestamp("us"), "when the Leader unmasked the sum, UTC"),
    "rejections": (pa.string(), "JSON object: reason -> reports refused for this window"),
}
"""Column -> Arrow type and meaning, in order."""

BASIS: dict[str, pa.DataType] = dict.fromkeys(CELL_ARRAYS, pa.float64()) | {"steps": pa.int64()}
"""What value, error, interval and share follow from (`statistics.CellBasis`): files have it beside
the columns that people read, and packs in their place."""

Q_VALUE = {
    "q_value": (
        pa.float64(),
        (
            "smallest false-discovery rate at which the row is significant, among the cells of "
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
    "n_hosts": (pa.int32(), "hosts that had reported, on a grid"),
    "n_min": (pa.int32(), "hosts that a release needs; NULL when the task is gone"),
    "settled_at": (pa.timestamp("us"), "when the Leader gave the window up, UTC"),
    "n_bound": (pa.int32(), "how many hosts n_hosts may be off by"),
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


def release_rows(release: PublishedWindow, cells: Sequence[Cell]) -> pa.Table:
    """Give the rows of a release, in the order of the vector."""
    same, count = of_window(release), len(cells)
    columns = [
        pa.array(
            [same[f.name]] * count if f.name in same else [getattr(c, f.name) for c in cells],
            f.type,
        )
        for f in SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def of_window(release: PublishedWindow) -> dict[str, object]:
    """Give the columns that are the same for all cells of a release."""
    task = release.task
    return {
        "series": task.series,
        "cohort": release.cohort,
        "window_start": utc(release.window_start_s),
        "window_s": task.window_s,
        "n_hosts": release.counts.hosts.value,
        "n_bound": release.counts.hosts.bound,
        "epsilon": task.epsilon_millionths / 1e6,
        "delta": task.delta_1e12 / 1e12,
        "domain": task.domain,
        "released_at": utc(release.released_s),
        "rejections": json.dumps(dict(sorted(release.rejections.items()))),
    }


def utc(seconds: float) -> datetime:
    """Naive UTC, as every timestamp in the store is."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def write_whole(rows: pa.Table, target: Path) -> None:
    """Write beside the target, sync, rename: a reader sees the whole file or none."""
    for folder in (target.parent.parent, target.parent):
        public_folder(folder)
    partial = target.with_name(f".{target.name}.partial")
    pq.write_table(rows, partial, compression="zstd")
    make_public(partial)
    partial.replace(target)
    sync_folder(target.parent)


def make_public(path: Path) -> None:
    """Let every user read a finished file or folder, whatever the umask, and sync it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Released numbers are public: readers run under other users than the Leader.
        os.fchmod(descriptor, 0o755 if path.is_dir() else 0o644)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def public_folder(folder: Path) -> None:
    """Make a folder that every user may enter, and those above it."""
    if not folder.is_dir():
        public_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        make_public(folder)
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


NAME: Final = "simulated.json"
FORMAT: Final = 1
_MOST_BYTES: Final = 1 << 20


class MarkUnreadable(ValueError):
    """A folder's mark says nothing that this version understands."""


@dataclass(frozen=True, slots=True)
class SimulatedMark:
    """What was simulated: no fleet stands behind the folder, and whoever shows its numbers says so.

    fidelity        of the simulator's engine
    weeks           of the fleet's time, all of them
    fingerprint     of everything that the windows depend on
    done            periods that are written, as "series/period"
    """

    scenario: str
    plan: str
    hosts: int
    gpus: int
    fidelity: str
    seed: int
    weeks: float
    fingerprint: str
    done: tuple[str, ...] = ()

    @property
    def fleet(self) -> str:
        return (
            f"{self.hosts:,} hosts of the scenario {self.scenario}, seed {self.seed}, "
            f"fidelity {self.fidelity}"
        )

    @property
    def line(self) -> str:
        """Say it in a line for people."""
        return f"simulated: {self.fleet}; no fleet stands behind these numbers"


def read_mark(folder: str | os.PathLike[str]) -> SimulatedMark | None:
    """Read the mark of a folder of releases; None where a fleet made them.

    Raises      MarkUnreadable
    """
    path = Path(folder) / NAME
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    try:
        if len(raw) > _MOST_BYTES:
            raise ValueError(f"{_MOST_BYTES} bytes at most")
        content = json.loads(raw)
        if content.pop("format") != FORMAT:
            raise ValueError(f"format {FORMAT}")
        return SimulatedMark(**content | {"done": tuple(content["done"])})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MarkUnreadable(f"{path}: expected the mark of a simulation: {error}") from None


def write_mark(folder: Path, mark: SimulatedMark) -> None:
    public_folder(folder)
    partial = folder / f".{NAME}.partial"
    partial.write_text(json.dumps({"format": FORMAT, **asdict(mark)}, indent=1) + "\n")
    make_public(partial)
    partial.replace(folder / NAME)
    sync_folder(folder)
