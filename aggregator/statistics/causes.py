"""The root-cause table of a released window: hosts, share, 95 % interval, trend.

Made of released cells alone, so that anybody who holds a release can make it again. Docs:
docs/root-causes.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import numpy as np

from . import correction as correcting
from .correction import SECTION as INCIDENTS
from .correction import Corrected, Detector, Rates, Reported
from .discoveries import is_significant, q_values
from .ratios import BELOW_NOISE_ERRORS, expected_by_chance, fieller, normal_quantile

NOT_DETECTED: Final = "not corrected: faults are read from logs and counters, not detected"
REPORTED_SCOPE: Final = "95 %: for the number of hosts that reported the cause"
CORRECTED_SCOPE: Final = (
    "95 %: for the number of hosts that had the cause, if hosts have one each and real faults are "
    "found like those of the bench; with *, for the number that reported it"
)


def chosen_rates(
    causes: Sequence[str], window_s: int, detector: Detector | None, agents_model: str | None
) -> tuple[Rates | None, str]:
    """Give the rates to correct a window of incidents by, or None; and which, or why not."""
    if detector is None:
        return None, "not corrected: no measured rates of the agents' detector"
    if detector.classes != tuple(causes):
        return None, "not corrected: the rates are of other causes than the release"
    if agents_model is None:
        return None, "not corrected: nobody said which model the agents run"
    if detector.model != agents_model:
        return None, (
            f"not corrected: the rates are of model {detector.model}, the agents run {agents_model}"
        )
    rates = detector.rates(window_s)
    if not correcting.correctable(rates).any():
        least = f"{correcting.LEAST_TRIALS} runs, one of them told rightly"
        why = f"not corrected: of no cause does the bench have {least}"
        return None, f"{why}, and fewer false alarms than finds"
    runs, hours = int(detector.trials.sum()), detector.worker_hours
    return rates, (
        f"corrected by {runs} runs and {hours:.1f} worker-hours of model {detector.model}"
    )


def _why_as_reported(rates: Rates, causes: Sequence[str], place: int) -> str:
    """Say of a cause that cannot be corrected why not, and what its hosts may pass for."""
    trials, right = int(rates.trials[place]), int(rates.counts[place, place])
    runs = f"{trials} run{'' if trials == 1 else 's'}"
    taken = [
        f"{causes[other]} in {int(count)}"
        for other, count in enumerate(rates.counts[place])
        if count and other != place
    ]
    passed = f"; taken for {', '.join(taken)}: that number may hold its hosts" if taken else ""
    if not trials:
        return "no bench made it"
    if not right:
        return f"never told rightly in {runs}{passed}"
    if trials < correcting.LEAST_TRIALS:
        return f"{runs} of it in the bench, {correcting.LEAST_TRIALS} are needed{passed}"
    return (
        f"its hosts report it with probability {rates.detection[place, place]:.3f}, hosts without "
        f"any cause by false alarm with {rates.false_alarm[place]:.3f}{passed}"
    )


FAULTS: Final = "hardware_faults"
CAUSE_SECTIONS: Final = (INCIDENTS, FAULTS)

COMPONENTS: Final = MappingProxyType(
    {
        "cpu_contention": "CPU", "cgroup_throttling": "CPU", "memory_pressure": "memory",
        "disk_io": "storage", "nic_cross_traffic": "network", "nic_limit_or_loss": "network",
        "pcie_pressure": "host", "gpu_thermal_or_power_limit": "GPU", "gpu_hardware_fault": "GPU",
        "gpu_shared": "GPU", "communication_wait": "network", "input_starvation": "job",
        "unknown": "unknown",
        "faulty_gpu": "GPU", "gpu_hbm3_memory": "GPU", "software_bug": "software",
        "network_switch_or_cable": "network", "host_maintenance": "host",
        "gpu_sram_memory": "GPU", "gpu_system_processor": "GPU", "nic": "network",
        "nccl_watchdog_timeout": "software", "silent_data_corruption": "GPU",
        "gpu_thermal_interface_and_sensor": "GPU", "ssd": "storage", "power_supply": "host",
        "server_chassis": "host", "io_expansion_board": "host", "dependency": "software",
        "cpu": "CPU", "system_memory": "memory",
    }
)  # fmt: skip
"""Cause -> what of a host it is of."""


class Trend(StrEnum):
    RISING = "rising"
    FALLING = "falling"
    STEADY = "no change beyond noise"
    UNKNOWN = "no window before"


@dataclass(frozen=True, slots=True, eq=False)
class CauseWindow:
    """What was released of one section of causes in one window.

    causes      the section's named cells, in its order
    reported    hosts by cause
    bias_bound  as `statistics.Cell` has it; None: released before it was known
    """

    series: str
    cohort: int
    window_start_s: int
    window_s: int
    section: str
    causes: tuple[str, ...]
    reported: Reported
    bias_bound: float | None = None


@dataclass(frozen=True, slots=True)
class CauseRow:
    """One cause.

    reported            hosts that reported it, as released
    hosts               hosts that had it, after correction; `standard_error` has the noise, the
                        detector's chance and its matrix' error in it
    low, high           95 % interval of hosts, the uncertainty of the false alarms included
    share ...           of the hosts that measured
    part ...            of all causes of the table together; None where that whole is noise
    false_high          how many of `hosts` false alarms could still account for
    below_noise         hosts is under 2 standard errors
    q_value             smallest false-discovery rate, among the table's causes, at which hosts is
                        significant
    as_reported         why this cause is not corrected although the table is; None: it is, or
                        nothing is
    change ...          hosts more than in the window before, at this window's size; None without
    """

    cause: str
    component: str
    reported: float
    hosts: float
    standard_error: float
    low: float
    high: float
    share: float
    share_low: float
    share_high: float
    part: float | None
    part_low: float | None
    part_high: float | None
    false_high: float
    below_noise: bool
    as_reported: str | None
    trend: Trend
    change: float | None
    change_low: float | None
    change_high: float | None
    q_value: float = 1.0

    @property
    def significant(self) -> bool:
        """Whether hosts differs from zero: else no number to quote."""
        return is_significant(self.q_value)

    @property
    def most(self) -> float:
        """Upper end of the interval of hosts; of negative hosts, that of zero."""
        return self.high - min(self.hosts, 0.0)


@dataclass(frozen=True, slots=True)
class CauseTable:
    """One window's causes: what is a number first, the most hosts first.

    corrected   by a detector's measured rates
    correction  by which, or why not
    by_chance   rows that would pass two standard errors if no host had been struck
    n           hosts that measured, noise included; accepted hosts where these were not counted
    scope       what hosts and their intervals are about, and what is in no interval
    bias_bound  hosts by which `reported` of any row may be low on average, as hosts with more
                causes than they may report left some out: upper 95 % bound, in no interval;
                None: unknown
    n_bound     how many hosts n may be off by
    """

    series: str
    cohort: int
    window_start_s: int
    window_s: int
    section: str
    n: int
    corrected: bool
    correction: str
    rows: tuple[CauseRow, ...]
    by_chance: float
    scope: str
    bias_bound: float | None
    n_bound: int = 0

    @property
    def shown(self) -> tuple[CauseRow, ...]:
        return tuple(row for row in self.rows if row.significant)


def cause_table(
    now: CauseWindow,
    before: CauseWindow | None = None,
    detector: Detector | None = None,
    agents_model: str | None = None,
) -> CauseTable:
    """Make the table of one window.

    before          the window right before it, where that was released
    detector        measured rates of the agents' detector, None where there are none
    agents_model    the model that the fleet's agents run, as their diagnoses name it
    Raises          ValueError when `before` is no window right before this one
    """
    same = ("series", "cohort", "window_s", "section", "causes")
    if before is not None and (
        before.window_start_s + before.window_s != now.window_start_s
        or any(getattr(now, name) != getattr(before, name) for name in same)
    ):
        raise ValueError(
            f"expected the window of {now.section} before {now.window_start_s}, "
            f"got {before.section} at {before.window_start_s}"
        )
    rates, correction = None, NOT_DETECTED
    if now.section == INCIDENTS:
        rates, correction = chosen_rates(now.causes, now.window_s, detector, agents_model)
    why: list[str | None] = [None] * len(now.causes)
    used = Rates.perfect(len(now.causes))
    try:
        found = correcting.correct(now.reported, rates or used)
        if rates is not None:
            used = rates
            for place in np.flatnonzero(~correcting.correctable(rates)).tolist():
                why[place] = _why_as_reported(rates, now.causes, place)
    except correcting.CorrectionRefused as refused:
        rates, correction = None, f"not corrected: {refused}"
        found = correcting.correct(now.reported, used)
    rows = _rows(now, before, found, used, why)
    return CauseTable(
        now.series, now.cohort, now.window_start_s, now.window_s, now.section,
        round(now.reported.hosts), rates is not None, correction,
        judged(rows, corrected=rates is not None),
        expected_by_chance(len(rows)),
        CORRECTED_SCOPE if rates is not None else REPORTED_SCOPE,
        now.bias_bound, now.reported.hosts_bound,
    )  # fmt: skip


def judged(rows: Sequence[CauseRow], *, corrected: bool) -> tuple[CauseRow, ...]:
    """Find which of a table's rows are significant, and put those first, by hosts.

    A detector that mistakes one cause for another makes the errors of both go together.
    """
    hosts = np.array([row.hosts for row in rows])
    errors = np.array([row.standard_error for row in rows])
    found = q_values(hosts, errors, independent=not corrected)
    told = [replace(row, q_value=float(q)) for row, q in zip(rows, found, strict=True)]
    told.sort(key=lambda row: (not row.significant, -row.hosts * row.significant, row.cause))
    return tuple(told)


def _rows(
    now: CauseWindow,
    before: CauseWindow | None,
    found: Corrected,
    rates: Rates,
    why: Sequence[str | None],
) -> list[CauseRow]:
    n, reach, off = now.reported.hosts, normal_quantile(), now.reported.off
    accused = now.reported.hosts_bound * rates.false_alarm_high
    error = found.standard_error
    below = found.share < BELOW_NOISE_ERRORS * error
    with_whole = found.covariance.sum(axis=0)
    parts = fieller(
        found.share, found.share.sum(), np.diag(found.covariance), with_whole.sum(), with_whole
    )
    moved = None if before is None else correcting.change(now.reported, before.reported, rates)
    rows = []
    for at, cause in enumerate(now.causes):
        step = None
        if moved is not None and before is not None:
            grown, share = float(moved[0][at]), float(found.share[at])
            beyond = off * abs(share) + before.reported.off * abs(share - grown)
            step = grown, reach * float(moved[1][at]) + beyond
        part = float(parts.value[at])
        known = not np.isnan(part)
        rows.append(
            CauseRow(
                cause=cause,
                component=COMPONENTS.get(cause, "other"),  # a later version's
                reported=float(now.reported.value[at]),
                hosts=n * float(found.share[at]),
                standard_error=n * float(error[at]),
                low=n * float(found.low[at]) - float(accused[at]),
                high=n * float(found.high[at]) + float(accused[at]),
                share=float(found.share[at]),
                share_low=float(found.low[at]) - off * abs(float(found.low[at])),
                share_high=float(found.high[at]) + off * abs(float(found.high[at])),
                part=part if known else None,
                part_low=float(parts.low[at]) if known else None,
                part_high=float(parts.high[at]) if known else None,
                false_high=n * float(found.false_high[at]),
                below_noise=bool(below[at]),
                as_reported=why[at],
                trend=_trend(step),
                change=None if step is None else n * step[0],
                change_low=None if step is None else n * (step[0] - step[1]),
                change_high=None if step is None else n * (step[0] + step[1]),
            )
        )
    return rows


def _trend(step: tuple[float, float] | None) -> Trend:
    """Name a change (and what it must pass), both as shares."""
    if step is None:
        return Trend.UNKNOWN
    moved, reach = step
    if abs(moved) <= reach:
        return Trend.STEADY
    return Trend.RISING if moved > 0 else Trend.FALLING
