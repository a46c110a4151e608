"""From how many hosts reported each cause to how many had it, by a detector's measured rates.

Everything is in shares of the hosts. With x_i the share that truly had cause i, A_ij the
probability that such a host reports j and f_j that a host without any does, the expected reports
are s = A'x + (1 - sum x) f; x is solved for. What is uncertain, and goes into the errors: the noise
of the release, the detector's own chance on so many hosts, and the rates themselves, which come
from a finite number of runs and hours.

A cause that the rates cannot carry (`correctable`) stays as reported, and the system is solved for
the others alone. Its hosts then count among those without a cause; what of them is reported as
another cause stays in that cause's number.

A host reports at most so many of its causes, drawn at random. Released sums do not say which causes
came together, so this is not corrected: a table carries the release's own bound. Docs:
docs/root-causes.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .ratios import CONFIDENCE, Floats, normal_quantile, wilson_low

Counts = npt.NDArray[np.int64]
Kept = npt.NDArray[np.bool_]

LEAST_TRIALS: Final = 3
"""Runs of a cause below which nothing is corrected by them: with one, each other cause's error
grows by a tenth of its hosts."""

MAX_CONDITION: Final = 1e3
"""A detector whose matrix amplifies errors more than this is of no use for a correction."""


class CorrectionRefused(ValueError):
    """Rates by which nothing can be corrected; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """A detector's rates, per host and window.

    detection           float64[k, k]; [i, j]: a host with cause i reports j; rows sum to 1 at most
    trials, counts      int64[k], int64[k, k] that the rows come from; without trials row i is no
                        measurement
    false_alarm         float64[k]: a host without any cause reports j
    false_alarm_low, false_alarm_high   ends of its 95 % interval
    """

    detection: Floats
    trials: Counts
    counts: Counts
    false_alarm: Floats
    false_alarm_low: Floats
    false_alarm_high: Floats

    def only(self, kept: Kept) -> Rates:
        """The same for some causes alone; the others are never reported, and have no trials."""
        both = np.outer(kept, kept)
        low, high = self.false_alarm_low, self.false_alarm_high
        return Rates(
            np.where(both, self.detection, 0.0),
            *(np.where(kept, self.trials, 0), np.where(both, self.counts, 0)),
            *(np.where(kept, rate, 0.0) for rate in (self.false_alarm, low, high)),
        )

    @classmethod
    def perfect(cls, classes: int) -> Rates:
        """Rates of a detector that is taken at its word: nothing is corrected."""
        nothing = np.zeros(classes)
        return cls(
            np.eye(classes), np.zeros(classes, np.int64), np.zeros((classes, classes), np.int64),
            nothing, nothing, nothing,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Corrected:
    """Shares of the hosts by true cause; float64[k].

    share           may be negative: noise is not clipped away
    covariance      float64[k, k] of share: noise, the detector's chance, its matrix' own error
    low, high       95 % interval, with the uncertainty of the false alarms in it on top; of the
                    hosts that reported it where the cause is not correctable
    false_high      how much of share false alarms could still account for
    """

    share: Floats
    covariance: Floats
    low: Floats
    high: Floats
    false_high: Floats

    @property
    def standard_error(self) -> Floats:
        """float64[k], of share; without the uncertainty of the false alarms."""
        return np.sqrt(np.diag(self.covariance))


@dataclass(frozen=True, slots=True, eq=False)
class Reported:
    """What one window released of a section.

    hosts           accepted hosts that measured, noise included; where they were not counted, all,
                    within hosts_bound
    value           float64[k], hosts that reported each cause, noise included
    standard_error  float64[k]
    hosts_error     standard error of hosts
    """

    hosts: float
    value: Floats
    standard_error: Floats
    hosts_error: float = 0.0
    hosts_bound: int = 0

    @property
    def off(self) -> float:
        """How far shares of the hosts may be off, as a part of them."""
        return self.hosts_bound / max(self.hosts - self.hosts_bound, 1)

    @property
    def share(self) -> Floats:
        """float64[k], of the hosts."""
        return self.value / self.hosts

    @property
    def noise(self) -> Floats:
        """float64[k, k], covariance of share."""
        of_hosts = np.outer(self.share, self.share) * (self.hosts_error / self.hosts) ** 2
        return np.asarray(np.diag((self.standard_error / self.hosts) ** 2) + of_hosts)


def correctable(rates: Rates) -> Kept:
    """Tell the causes that the rates can carry: bool[k].

    Enough runs, told rightly in one at least, and by its hosts more often than by hosts without any
    cause.
    """
    right = np.diag(rates.detection)
    told: Kept = (rates.trials >= LEAST_TRIALS) & (right > 0) & (right > rates.false_alarm)
    return told


def correct(reported: Reported, rates: Rates) -> Corrected:
    """Estimate which share of the hosts truly had each cause.

    A host is taken to have at most one cause, and at most one incident of it, in the window. What
    is not correctable keeps the share that was reported, with the error of the noise alone.
    Raises      CorrectionRefused when the rates tell the causes apart too badly
    """
    _check(rates, len(reported.value))
    kept = correctable(rates)
    inverse, used = _inverse(rates, kept), rates.only(kept)
    share = inverse @ (reported.share - used.false_alarm)
    struck = np.where(kept, share, 0.0)
    drawn = reported.noise + _chance(struck, used, reported.hosts)
    covariance = inverse @ (drawn + _matrix_error(struck, used)) @ inverse.T
    reach = normal_quantile() * np.sqrt(np.diag(covariance))
    beside = normal_quantile() * np.sqrt(np.diag(inverse @ drawn @ inverse.T))
    clean = max(1.0 - float(np.clip(struck, 0, 1).sum()), 0.0)
    # No more hosts can have been accused wrongly than reported at all.
    most = np.maximum(reported.share + normal_quantile() * np.sqrt(np.diag(reported.noise)), 0.0)
    above = np.minimum(clean * (used.false_alarm_high - used.false_alarm), most)
    below = clean * (used.false_alarm - used.false_alarm_low)
    down, up = (np.sqrt((inverse**2) @ change**2) for change in (above, below))
    low = share - np.hypot(reach, down)
    # False alarms explain hosts away, down to none; only noise goes below.
    low = np.maximum(low, np.minimum(share - reach, 0.0))
    reach_up = np.maximum(reach, np.hypot(beside, _missed(struck, used)))
    return Corrected(share, covariance, low, share + np.hypot(reach_up, up), down)


def change(now: Reported, before: Reported, rates: Rates) -> tuple[Floats, Floats]:
    """Estimate by how much each true share moved, and the standard error of that; float64[k].

    The same detector spoke in both windows: its false alarms cancel, and its matrix' own error is
    in proportion to the change alone, so a trend is told more sharply than a level.
    Raises      CorrectionRefused
    """
    _check(rates, len(now.value))
    kept = correctable(rates)
    inverse, used = _inverse(rates, kept), rates.only(kept)
    moved = inverse @ (now.share - before.share)
    inside = now.noise + before.noise + _matrix_error(np.where(kept, moved, 0.0), used)
    for window in (now, before):
        share = np.where(kept, inverse @ (window.share - used.false_alarm), 0.0)
        inside = inside + _chance(share, used, window.hosts)
    return moved, np.sqrt(np.diag(inverse @ inside @ inverse.T))


def _check(rates: Rates, classes: int) -> None:
    if rates.detection.shape != (classes, classes) or rates.false_alarm.shape != (classes,):
        raise ValueError(
            f"expected a {classes} x {classes} detection matrix and {classes} false-alarm rates, "
            f"got {rates.detection.shape} and {rates.false_alarm.shape}"
        )
    everything = (rates.detection, rates.false_alarm, rates.false_alarm_low, rates.false_alarm_high)
    if any((values < 0).any() or (values > 1).any() for values in everything):
        raise ValueError("a detector's rates must be probabilities between 0 and 1")


def _inverse(rates: Rates, kept: Kept) -> Floats:
    """From reported shares, false alarms taken off, to true ones; those not kept pass through."""
    among = (rates.detection - rates.false_alarm[None, :]).T
    matrix = np.where(np.outer(kept, kept), among, np.eye(len(kept)))
    condition = float(np.linalg.cond(matrix))
    if not condition <= MAX_CONDITION:
        raise CorrectionRefused(
            "the detector tells its causes apart too badly to correct by: expected a condition "
            f"of at most {MAX_CONDITION:g}, got {condition:.3g}"
        )
    return np.asarray(np.linalg.inv(matrix), np.float64)


def _missed(share: Floats, rates: Rates) -> Floats:
    """How many more hosts a cause may have, its detection being as low as its runs allow.

    A cause that was told rightly in all of its few runs may be missed half of the time: a normal
    error around what was counted would not say so. Source: E. B. Wilson 1927
    """
    right = np.diag(rates.counts)
    lowest = wilson_low(right, rates.trials)
    told = np.diag(rates.detection)
    factor = np.divide(told, lowest, out=np.ones_like(lowest), where=lowest > 0)
    return np.asarray(np.maximum(share, 0.0) * (factor - 1), np.float64)


def _chance(share: Floats, rates: Rates, hosts: float) -> Floats:
    """Covariance of reported shares by what the detector happens to say on these hosts."""
    present = np.clip(share, 0.0, 1.0)
    clean = max(1.0 - float(present.sum()), 0.0)
    total = clean * _one_draw(rates.false_alarm)
    for part, row in zip(present, rates.detection, strict=True):
        total = total + part * _one_draw(row)
    return total / hosts


def _matrix_error(share: Floats, rates: Rates) -> Floats:
    """Covariance of reported shares by what is not known of the matrix: multinomial, row by row.

    The rows' probabilities are smoothed for it (one run's worth of doubt, spread evenly): a class
    that was right in 12 of 12 runs is not known to be always right. Source: Perks 1947.
    """
    classes = len(share)
    total = np.zeros((classes, classes))
    for part, trials, counts in zip(share, rates.trials, rates.counts, strict=True):
        if trials:
            smoothed = (counts + 1 / (classes + 1)) / (trials + 1)
            total += part**2 * _one_draw(smoothed) / (trials + 2)
    tried = rates.trials > 0
    return np.where(np.outer(tried, tried), total, 0.0)


def _one_draw(probabilities: Floats) -> Floats:
    """Covariance of the indicators of one draw of at most one class."""
    return np.asarray(np.diag(probabilities) - np.outer(probabilities, probabilities), np.float64)


FORMAT: Final = 1
SECTION: Final = "incidents"
HOUR_S: Final = 3600
MAX_FILE_BYTES: Final = 1 << 18
MAX_CLASSES: Final = 64
MAX_COUNT: Final = 10**9
MAX_TEXT: Final = 2_000
_KEYS: Final = (
    "format", "model", "section", "classes", "trials", "counts", "worker_hours", "false_incidents",
    "about",
)  # fmt: skip


class DetectorFileError(ValueError):
    """A file of measured rates that cannot be used; the message says what was expected."""


@dataclass(frozen=True, slots=True, eq=False)
class Detector:
    """What a bench measured of incidents, on held-out runs: counts alone.

    Rates and their uncertainty follow from them: a rate is never believed further than its runs.

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
            return cls._parse(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise DetectorFileError(f"{path}: {error}") from None

    @classmethod
    def shipped(cls) -> Detector | None:
        """Read the rates that came with this installation, None where none did."""
        path = Path(__file__).with_name("incident_rates.json")
        return cls.load(path) if path.exists() else None

    @classmethod
    def _parse(cls, raw: Any) -> Detector:
        if not isinstance(raw, dict) or set(raw) != set(_KEYS):
            found = sorted(map(str, raw)) if isinstance(raw, dict) else type(raw).__name__
            raise DetectorFileError(f"expected the keys {', '.join(_KEYS)}, got {found}")
        if raw["format"] != FORMAT or raw["section"] != SECTION:
            got = f"{raw['format']!r} of {raw['section']!r}"
            raise DetectorFileError(f"expected format {FORMAT} of section {SECTION!r}, got {got}")
        classes = raw["classes"]
        if not _names(classes):
            raise DetectorFileError(f"classes: expected 1 to {MAX_CLASSES} different names")
        k = len(classes)
        trials = _counts("trials", raw["trials"], (k,))
        counts = _counts("counts", raw["counts"], (k, k))
        if (counts.sum(axis=1) > trials).any():
            raise DetectorFileError("counts: expected rows that sum to their trials at most")
        hours = raw["worker_hours"]
        number = isinstance(hours, int | float) and not isinstance(hours, bool)
        if not number or not 0 <= hours <= MAX_COUNT:
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
        events = (self.false_incidents.astype(np.float64), *_poisson_bounds(self.false_incidents))
        alarms = (self._in_window(some, window_s) for some in events)
        return Rates(detection, self.trials, self.counts, *alarms)

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
