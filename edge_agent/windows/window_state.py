"""What a host gathers within one window, as JSON, and long windows on its disk."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Self

from collectors.records.activity import EVERYTHING_MILLIONTHS, KernelActivity, scale
from transport.files.sqlite_file import OtherSchema, SqliteFile
from transport.process.supervision import Closing
from wire.task import series_name

COPY_FAMILIES = frozenset({"memcpy", "memset"})

# A copy's time is its bytes plus a fixed cost, about that of 16 KiB over PCIe. Only a record that
# mixes sizes needs the estimate; a source that keeps sizes apart is exact.
_COPY_FIXED_BYTES = 1 << 14

# Where only calls are seen, a copy is taken to run at this rate: PCIe 4.0 x16 in practice. Shares
# of sizes do not depend on it.
_COPY_BYTES_PER_S = 25_000_000_000
_NS = 1_000_000_000

Totals = dict[str, int]


@dataclass(slots=True)
class GpuTotals:
    """One GPU's window: ns and launches by class, ns by log2 bin (keys are text, as in JSON)."""

    family_ns: Totals = field(default_factory=dict, repr=False)
    family_launches: Totals = field(default_factory=dict, repr=False)
    application_ns: Totals = field(default_factory=dict, repr=False)
    application_launches: Totals = field(default_factory=dict, repr=False)
    duration_ns: Totals = field(default_factory=dict, repr=False)
    copy_size_ns: Totals = field(default_factory=dict, repr=False)
    covered_ns: Totals = field(default_factory=dict, repr=False)
    copy_cost_bytes: Totals = field(default_factory=dict, repr=False)
    untimed: bool = field(default=False, repr=False)

    @property
    def timed(self) -> bool:
        """Tell whether GPU time is known of some work."""
        return any(self.family_ns.values())

    @property
    def launches_only(self) -> bool:
        """Tell whether work was seen, and of none of it how long it took."""
        return self.untimed and not self.timed

    @property
    def copy_ns(self) -> Totals:
        """Time spent copying by size: measured, or estimated where no GPU time is known at all."""
        if not self.launches_only:
            return self.copy_size_ns
        return {b: cost * _NS // _COPY_BYTES_PER_S for b, cost in self.copy_cost_bytes.items()}

    def measured_ns(self, wall_ns: int) -> int:
        """Return how much of the wall time was watched: what was seen busy was watched, too."""
        busy_ns = sum(self.family_ns.values())
        return min(max(busy_ns, *self.covered_ns.values(), 0), wall_ns)

    def cover(self, source: str, span_ns: int) -> None:
        bump(self.covered_ns, source, span_ns)

    def add(self, record: KernelActivity, share: tuple[int, int]) -> None:
        """Add the share a/b of a record; the rest of it lies in another window."""
        rate = record.sampling_rate_millionths
        numerator, denominator = share[0] * EVERYTHING_MILLIONTHS, share[1] * rate
        launches = record.count * numerator // denominator
        bump(self.family_launches, record.family, launches)
        bump(self.application_launches, record.application, launches)
        if record.gpu_time_ns is None:
            self.untimed = self.untimed or record.count > 0
            for place, copies in record.copy_log2_bins:
                cost = copies * _copy_cost(1 << place) * numerator // denominator
                bump(self.copy_cost_bytes, str(place), cost)
            return
        time_ns = record.gpu_time_ns * numerator // denominator
        bump(self.family_ns, record.family, time_ns)
        bump(self.application_ns, record.application, time_ns)
        if record.family not in COPY_FAMILIES:
            _spread(self.duration_ns, record.log2_bins, time_ns, lambda low: 3 * low)
        _spread(self.copy_size_ns, record.copy_log2_bins, time_ns, _copy_cost)


@dataclass(slots=True)
class WindowState:
    """All totals of one window: per GPU, and by section and cell [sum, samples].
    coin        the host's secret for measurement sampling, uniform in [0, 10^6); None: not drawn
    sources     ns that each source worked
    """

    coin: int | None = field(default=None, repr=False)
    gpus: dict[str, GpuTotals] = field(default_factory=dict, repr=False)
    cells: dict[str, dict[str, list[int]]] = field(default_factory=dict, repr=False)
    sources: Totals = field(default_factory=dict, repr=False)

    def gpu(self, index: int) -> GpuTotals:
        return self.gpus.setdefault(str(index), GpuTotals())

    def observe(self, section: str, cell: str, value: int) -> None:
        """Add one value to a cell."""
        total = self.cells.setdefault(section, {}).setdefault(cell, [0, 0])
        total[0] += value
        total[1] += 1

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read a state that this host wrote. Raises ValueError when it is damaged."""
        try:
            raw = json.loads(text)
            gpus = {index: GpuTotals(**totals) for index, totals in raw["gpus"].items()}
            sources = raw.get("sources", {})  # not kept before means and indicators asked
            return cls(raw["coin"], gpus, raw["cells"], sources)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"a stored window is damaged: {type(error).__name__}") from None


def apportion(weights: Iterable[int], total: int) -> list[int]:
    """Split `total` by weights into integers that sum to it exactly; all zero without weights."""
    weights = list(weights)
    whole = sum(weights)
    if whole == 0:
        return [0] * len(weights)
    return scale(weights, total, whole)


def _copy_cost(low: int) -> int:
    return low + _COPY_FIXED_BYTES


def bump(totals: Totals, key: str, amount: int) -> None:
    totals[key] = totals.get(key, 0) + amount


def _spread(
    totals: Totals, bins: tuple[tuple[int, int], ...], time_ns: int, cost: Callable[[int], int]
) -> None:
    """Spread a record's time over its bins by launches x typical cost; one bin takes it exactly."""
    shares = apportion((count * cost(1 << place) for place, count in bins), time_ns)
    for (place, _), share in zip(bins, shares, strict=True):
        bump(totals, str(place), share)


_SCHEMA: Final = """
DROP TABLE IF EXISTS windows;  -- raw totals without an expiry
CREATE TABLE IF NOT EXISTS open_windows (
    series TEXT NOT NULL, window INTEGER NOT NULL, state BLOB NOT NULL, expires_s INTEGER NOT NULL,
    PRIMARY KEY (series, window)
) WITHOUT ROWID
"""


SCHEMA_VERSION: Final = 1
"""Files from before it was marked have this table too."""


_FILE: Final = SqliteFile(
    tables=_SCHEMA,
    version=SCHEMA_VERSION,
    unmarked=SCHEMA_VERSION,
    journal="TRUNCATE",
    erases=True,
    checked=False,
)


class AccumulatorsUnavailable(Exception):
    """The file of open windows cannot be used: says what is wrong and how to recover."""


class DurableAccumulators(Closing):
    """Each open window's totals, 0600; raw, so that `secure_delete` overwrites what is sealed.

    They stand by series key; what an earlier agent kept by name is any Leader's.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            _need_private(path)
            self._db = _FILE.open(path)
        except OtherSchema as problem:
            raise AccumulatorsUnavailable(str(problem)) from None
        except (OSError, sqlite3.Error) as error:
            raise _unavailable(path, error) from None

    def load(self, series: str, window: int) -> WindowState | None:
        """Return the totals of a window, None when nothing is kept."""
        try:
            found = self._db.execute(
                "SELECT state FROM open_windows WHERE series IN (?, ?) AND window = ? "
                "ORDER BY series = ?",
                (series_name(series), series, window, series_name(series)),
            ).fetchone()
            return None if found is None else WindowState.from_json(found[0])
        except (sqlite3.Error, ValueError) as error:
            raise _unavailable(self._path, error) from None

    def save(self, series: str, window: int, state: WindowState, expires_s: int) -> None:
        """Replace a window's totals on disk; from `expires_s` on no report can need them."""
        self._write(
            "INSERT OR REPLACE INTO open_windows VALUES (?, ?, ?, ?)",
            (series, window, state.to_json(), expires_s),
        )

    def erase(self, series: str, window: int) -> None:
        """Forget a window: call it once its report is sealed."""
        self._erase(series, "window = ?", window)

    def erase_before(self, series: str, window: int) -> None:
        """Forget windows that can no longer be reported."""
        self._erase(series, "window < ?", window)

    def erase_expired(self, now_s: int) -> None:
        """Forget what no report can need, of any series."""
        self._write("DELETE FROM open_windows WHERE expires_s <= ?", (now_s,))

    def windows(self, series: str) -> list[int]:
        """Return the starts of the windows that are kept, oldest first."""
        rows = self._db.execute(
            "SELECT DISTINCT window FROM open_windows WHERE series IN (?, ?) ORDER BY window",
            (series, series_name(series)),
        )
        return [row[0] for row in rows]

    def close(self) -> None:
        self._db.close()

    def _erase(self, series: str, which: str, window: int) -> None:
        statement = f"DELETE FROM open_windows WHERE series IN (?, ?) AND {which}"  # noqa: S608
        self._write(statement, (series, series_name(series), window))

    def _write(self, statement: str, values: tuple[object, ...]) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise _unavailable(self._path, error) from None


def _need_private(path: Path) -> None:
    """Refuse an older file with wider rights: others may have read it."""
    with suppress(FileNotFoundError):
        mode = path.lstat().st_mode & 0o777
        if mode & 0o077:
            raise AccumulatorsUnavailable(f"{path}: expected mode 0600, got {mode:04o}")


def _unavailable(path: Path, error: Exception) -> AccumulatorsUnavailable:
    reason = getattr(error, "strerror", None) or str(error)
    return AccumulatorsUnavailable(
        f"{path}: {reason}. Its windows are lost; move the file away and start again"
    )
