"""From how many hosts reported each cause to how many had it, by a detector's measured rates.

Everything is in shares of the hosts. With x_i the share that truly had cause i, A_ij the
probability that such a host reports j and f_j that a host without any does, the expected reports
are s = A'x + (1 - sum x) f; x is solved for. What is uncertain, and goes into the errors: the noise
of the release, the detector's own chance on so many hosts, and the rates themselves, which come
from a finite number of runs and hours. Docs: docs/root-causes.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from .ratios import Floats, normal_quantile

Counts = npt.NDArray[np.int64]

MAX_CONDITION: Final = 1e3
"""A detector whose matrix amplifies errors more than this is of no use for a correction."""


class CorrectionRefused(ValueError):
    """Rates by which nothing can be corrected; the message says why."""


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """A detector's rates, per host and window.

    detection           float64[k, k]; [i, j]: a host with cause i reports j; rows sum to 1 at most
    trials, counts      int64[k], int64[k, k] that the rows come from; no trials: row i is an
                        assumption, and carries no error
    false_alarm         float64[k]: a host without any cause reports j
    false_alarm_low, false_alarm_high   ends of its 95 % interval
    """

    detection: Floats
    trials: Counts
    counts: Counts
    false_alarm: Floats
    false_alarm_low: Floats
    false_alarm_high: Floats

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
    low, high       95 % interval, with the uncertainty of the false alarms in it on top
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

    hosts           accepted hosts
    value           float64[k], hosts that reported each cause, noise included
    standard_error  float64[k]
    """

    hosts: int
    value: Floats
    standard_error: Floats

    @property
    def share(self) -> Floats:
        """float64[k], of the hosts."""
        return self.value / self.hosts

    @property
    def noise(self) -> Floats:
        """float64[k, k], covariance of share."""
        return np.diag((self.standard_error / self.hosts) ** 2)


def correct(reported: Reported, rates: Rates) -> Corrected:
    """Estimate which share of the hosts truly had each cause.

    A host is taken to have at most one cause, and at most one incident of it, in the window.
    Raises      CorrectionRefused when the rates tell the causes apart too badly
    """
    inverse = _inverse(rates, len(reported.value))
    share = inverse @ (reported.share - rates.false_alarm)
    inside = reported.noise + _chance(share, rates, reported.hosts) + _matrix_error(share, rates)
    covariance = inverse @ inside @ inverse.T
    reach = normal_quantile() * np.sqrt(np.diag(covariance))
    clean = max(1.0 - float(np.clip(share, 0, 1).sum()), 0.0)
    # No more hosts can have been accused wrongly than reported at all.
    most = np.maximum(reported.share + normal_quantile() * np.sqrt(np.diag(reported.noise)), 0.0)
    above = np.minimum(clean * (rates.false_alarm_high - rates.false_alarm), most)
    below = clean * (rates.false_alarm - rates.false_alarm_low)
    down, up = (np.sqrt((inverse**2) @ change**2) for change in (above, below))
    low = share - np.hypot(reach, down)
    # False alarms explain hosts away, down to none; only noise goes below.
    low = np.maximum(low, np.minimum(share - reach, 0.0))
    return Corrected(share, covariance, low, share + np.hypot(reach, up), down)


def change(now: Reported, before: Reported, rates: Rates) -> tuple[Floats, Floats]:
    """Estimate by how much each true share moved, and the standard error of that; float64[k].

    The same detector spoke in both windows: its false alarms cancel, and its matrix' own error is
    in proportion to the change alone, so a trend is told more sharply than a level.
    Raises      CorrectionRefused
    """
    inverse = _inverse(rates, len(now.value))
    moved = inverse @ (now.share - before.share)
    inside = now.noise + before.noise + _matrix_error(moved, rates)
    for window in (now, before):
        share = inverse @ (window.share - rates.false_alarm)
        inside = inside + _chance(share, rates, window.hosts)
    return moved, np.sqrt(np.diag(inverse @ inside @ inverse.T))


def _inverse(rates: Rates, classes: int) -> Floats:
    detection, false_alarm = rates.detection, rates.false_alarm
    if detection.shape != (classes, classes) or false_alarm.shape != (classes,):
        raise ValueError(
            f"expected a {classes} x {classes} detection matrix and {classes} false-alarm rates, "
            f"got {detection.shape} and {false_alarm.shape}"
        )
    everything = (detection, false_alarm, rates.false_alarm_low, rates.false_alarm_high)
    if any((one < 0).any() or (one > 1).any() for one in everything):
        raise ValueError("a detector's rates must be probabilities between 0 and 1")
    deaf = np.flatnonzero(np.diag(detection) <= false_alarm)
    if deaf.size:
        at = int(deaf[0])
        raise CorrectionRefused(
            "false alarms drown a cause: expected its hosts to report it more often than hosts "
            f"without any, got {detection[at, at]:.3f} and {false_alarm[at]:.3f} (class {at})"
        )
    matrix = (detection - false_alarm[None, :]).T
    condition = float(np.linalg.cond(matrix))
    if not condition <= MAX_CONDITION:
        raise CorrectionRefused(
            "the detector tells its causes apart too badly to correct by: expected a condition "
            f"of at most {MAX_CONDITION:g}, got {condition:.3g}"
        )
    return np.asarray(np.linalg.inv(matrix), np.float64)


def _chance(share: Floats, rates: Rates, hosts: int) -> Floats:
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
    return total


def _one_draw(probabilities: Floats) -> Floats:
    """Covariance of the indicators of one draw of at most one class."""
    return np.asarray(np.diag(probabilities) - np.outer(probabilities, probabilities), np.float64)
