"""How well agents tell causes apart, as measured: counts of a bench, read from a file with bounds.

The file holds counts alone; rates and their uncertainty are computed here, so that a rate is never
believed further than its runs carry it. Docs: docs/root-causes.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .correction import Rates
from .ratios import CONFIDENCE, Floats

FORMAT: Final = 1
SECTION: Final = "incidents"
HOUR_S: Final = 3600
MAX_FILE_BYTES: Final = 1 << 18
MAX_CLASSES: Final = 64
MAX_COUNT: Final = 10**9
MAX_TEXT: Final = 2_000

Counts = npt.NDArray[np.int64]

_KEYS: Final = (
    "format", "model", "section", "classes", "trials", "counts", "worker_hours", "false_incidents",
    "about",
)  # fmt: skip


class DetectorFileError(ValueError):
    """A file of measured rates that cannot be used; the message says what was expected."""


@dataclass(frozen=True, slots=True, eq=False)
class Detector:
    """What a bench measured of incidents, on held-out runs.

    model            name, version and hash of the model that was measured, as diagnoses carry it
    classes          causes, in the catalogue's order
    trials           int64[k]; runs whose true cause was class i; 0: it was never measured
    counts           int64[k, k]; [i, j]: of those, how many ended as an incident of class j; the
                     rest of a row's trials raised none
    worker_hours     hours of workers without a fault, hard negatives included
    false_incidents  int64[k]; incidents in them, by the class that was accused
    about            which runs these were
    """

    model: str
    classes: tuple[str, ...]
    trials: Counts
    counts: Counts
    worker_hours: float
    false_incidents: Counts
    about: str

    @classmethod
    def load(cls, path: Path) -> Detector:
        """Read a file. Raises OSError, and DetectorFileError for one that is not whole."""
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:
            raise DetectorFileError(f"{path}: expected at most {MAX_FILE_BYTES} bytes, got more")
        try:
            return cls.parse(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise DetectorFileError(f"{path}: {error}") from None

    @classmethod
    def shipped(cls) -> Detector | None:
        """Read the rates that came with this installation, None where none did."""
        path = Path(__file__).with_name("incident_rates.json")
        return cls.load(path) if path.exists() else None

    @classmethod
    def parse(cls, raw: Any) -> Detector:
        """Check what a file says. Raises DetectorFileError."""
        if not isinstance(raw, dict) or set(raw) != set(_KEYS):
            found = sorted(map(str, raw)) if isinstance(raw, dict) else type(raw).__name__
            raise DetectorFileError(f"expected the keys {', '.join(_KEYS)}, got {found}")
        if raw["format"] != FORMAT or raw["section"] != SECTION:
            raise DetectorFileError(
                f"expected format {FORMAT} of section {SECTION!r}, "
                f"got {raw['format']!r} of {raw['section']!r}"
            )
        classes = raw["classes"]
        if not _names(classes):
            raise DetectorFileError(f"classes: expected 1 to {MAX_CLASSES} different names")
        k = len(classes)
        trials = _counts("trials", raw["trials"], (k,))
        counts = _counts("counts", raw["counts"], (k, k))
        if (counts.sum(axis=1) > trials).any():
            raise DetectorFileError("counts: expected rows that sum to their trials at most")
        hours = raw["worker_hours"]
        if not _number(hours) or not 0 <= hours <= MAX_COUNT:
            raise DetectorFileError(f"worker_hours: expected hours, at least 0, got {hours!r}")
        alarms = _counts("false_incidents", raw["false_incidents"], (k,))
        if alarms.any() and not hours:
            raise DetectorFileError("false_incidents: expected none in no worker-hours")
        return cls(
            _text("model", raw["model"]), tuple(classes), trials, counts, float(hours), alarms,
            _text("about", raw["about"]),
        )  # fmt: skip

    def rates(self, window_s: int) -> Rates:
        """Give the rates of a host and window, with what their counts leave open.

        A host counts as one worker, and false incidents come as a Poisson stream. A class without
        trials has the row of one that is told rightly; nothing is corrected by it.
        """
        tried = self.trials > 0
        detection = np.eye(len(self.classes))
        detection[tried] = self.counts[tried] / self.trials[tried][:, None]
        low, high = _poisson_bounds(self.false_incidents)
        return Rates(
            detection,
            self.trials,
            self.counts,
            self._in_window(self.false_incidents.astype(np.float64), window_s),
            self._in_window(low, window_s),
            self._in_window(high, window_s),
        )

    def _in_window(self, events: Floats, window_s: int) -> Floats:
        """Probability that a host with so many events in the measured hours has one in a window."""
        if not self.worker_hours:
            return np.where(events > 0, 1.0, 0.0)
        return -np.expm1(-events / self.worker_hours * window_s / HOUR_S)


def _poisson_bounds(events: Counts) -> tuple[Floats, Floats]:
    """Exact bounds of Poisson means. Source: Garwood 1936."""
    from scipy.special import gammaincinv  # not scipy.stats, which takes a second to load

    tail = (1 - CONFIDENCE) / 2
    low = np.where(events > 0, gammaincinv(np.maximum(events, 1), tail), 0.0)
    high = gammaincinv(events + 1.0, 1 - tail)
    return np.asarray(low, np.float64), np.asarray(high, np.float64)


def _counts(name: str, raw: Any, shape: tuple[int, ...]) -> Counts:
    flat = raw
    if len(shape) == 2 and isinstance(raw, list):
        ragged = any(not isinstance(row, list) or len(row) != shape[1] for row in raw)
        flat = None if ragged or len(raw) != shape[0] else [cell for row in raw for cell in row]
    size = int(np.prod(shape))
    if not isinstance(flat, list) or len(flat) != size or not all(map(_count, flat)):
        wanted = " x ".join(map(str, shape))
        raise DetectorFileError(f"{name}: expected {wanted} whole numbers from 0 on")
    return np.array(flat, dtype=np.int64).reshape(shape)


def _count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT:
        raise DetectorFileError(f"{name}: expected a text of 1 to {MAX_TEXT} characters")
    return value


def _names(value: Any) -> bool:
    return (
        isinstance(value, list)
        and 0 < len(value) <= MAX_CLASSES
        and all(isinstance(item, str) and 0 < len(item) <= 64 for item in value)
        and len(set(value)) == len(value)
    )
