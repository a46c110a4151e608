"""A plan: which sections a cohort reports, how often, with which share of one budget.

What it costs follows from integers that the agent recomputes: a plan promises what a task will do.
Noise is in units of a section's sensitivity Delta, errors in percent of full scale n Delta.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Final

from . import calibrate
from .calibrate import MILLION, SIGMA_UNIT, gaussian_delta, gdp_mu_1e9, sigma_local_1024
from .errors import ParameterError

SCHEMES: Final = ("masked", "local")
LONGEST_EPOCH_S: Final = 3900
HELPER_OUTAGE_S: Final = 4 * 3600


@dataclass(frozen=True, slots=True)
class PlannedSection:
    """One section of a planned task.

    name               as in the catalogue
    weight_millionths  of the host's budget
    rate_millionths    how often a host measures (its own secret coin); 1,000,000 is always
    """

    name: str
    weight_millionths: int
    rate_millionths: int = 1_000_000


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """One task: sections that share a window length.

    windows     windows the series will ever have; None when it is open-ended
    """

    series: str
    window_s: int
    lateness_s: int
    retention_s: int
    sections: tuple[PlannedSection, ...]
    windows: int | None = None

    @property
    def T(self) -> int:  # the protocol's symbol
        """Windows of this task that any 168 hours touch."""
        endless = 1 << 62
        return calibrate.windows_touched(
            self.window_s, endless if self.windows is None else self.windows
        )

    @property
    def weight_millionths(self) -> int:
        """Weight of all its sections, which is what one window of it costs, times T."""
        return sum(section.weight_millionths for section in self.sections)


@dataclass(frozen=True, slots=True)
class Plan:
    """A cohort and its tasks.

    hosts        N_max, hosts on the roster
    n_min        fewest accepted hosts of a release
    t            hosts whose data and noise someone may know
    gpus_per_host  of the largest host: bounds are per host
    """

    name: str
    scheme: str
    epsilon_millionths: int
    delta_1e12: int
    hosts: int
    n_min: int
    t: int
    min_operators: int
    tasks: tuple[PlannedTask, ...]
    gpus_per_host: int = 8

    @property
    def h(self) -> int:
        """Hosts whose noise counts: n_min - t, or 1 where each host adds the whole noise."""
        if self.scheme == "local":
            return 1
        return calibrate.honest_hosts(self.hosts, self.n_min, self.t)

    @property
    def mu_1e9(self) -> int:
        return gdp_mu_1e9(self.epsilon_millionths, self.delta_1e12)

    @property
    def operator_cap(self) -> int:
        """Most hosts of one operator: t covers them, and h >= n_min / 2 caps t."""
        return self.n_min // 2

    def check(self) -> None:
        """Raise ParameterError where the plan breaks a bound of the protocol."""
        if self.scheme not in SCHEMES:
            raise ParameterError("scheme", " or ".join(SCHEMES), self.scheme)
        if not self.tasks or not all(task.sections for task in self.tasks):
            raise ParameterError("tasks", "at least one, each with at least one section", "none")
        if not 1 <= self.n_min <= self.hosts:
            raise ParameterError("n_min", f"1 .. {self.hosts} (the roster)", self.n_min)
        series = [task.series for task in self.tasks]
        if len(set(series)) != len(series):
            raise ParameterError("series", "a name of its own for each task", series)
        calibrate.check_weights([task.weight_millionths for task in self.tasks])
        for task in self.tasks:
            _check_task(task)
        _ = self.h, self.mu_1e9


def _check_task(task: PlannedTask) -> None:
    if task.T < 1 or task.lateness_s < 0:
        raise ParameterError("lateness", ">= 0 s", task.lateness_s)
    least = LONGEST_EPOCH_S + task.lateness_s + HELPER_OUTAGE_S
    if task.retention_s < least:
        raise ParameterError(
            f"retention of {task.series!r}",
            f">= {least} s: epoch, lateness and a Helper's outage of 4 h",
            task.retention_s,
        )
    names = [section.name for section in task.sections]
    if len(set(names)) != len(names):
        raise ParameterError(f"sections of {task.series!r}", "each once", names)
    for section in task.sections:
        if section.weight_millionths < 1:
            raise ParameterError(f"weight of {section.name!r}", "above 0", 0)
        if not 0 < section.rate_millionths <= 1_000_000:
            rate = section.rate_millionths / 1e6
            raise ParameterError(f"rate of {section.name!r}", "0 < rate <= 1", rate)


PERIODS_S: Final = {"minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
NOISE_FLOOR: Final = 2.0
"""A released value below this many standard errors is marked as noise."""


@dataclass(frozen=True, slots=True)
class SectionShape:
    """A section's bounds in base units, as the catalogue resolves them for one host.

    a, B, q     coordinate cap, L1 bound, base units per step
    """

    kind: str
    length: int
    a: int
    B: int
    q: int

    @property
    def delta_sq(self) -> int:
        return calibrate.sensitivity_sq_steps(self.a, self.B, self.q)

    @property
    def m(self) -> int:
        """Most cells that a host sets, of indicators; 0 for other kinds."""
        return self.B // self.a if self.kind == "indicators" else 0


@dataclass(frozen=True, slots=True)
class SectionFigures:
    """One section's noise and errors.

    sigma_*        units of the sensitivity Delta; released at n = all hosts of the roster
    error_percent  of full scale n Delta, per period not shorter than a window; None otherwise
    sigma_hosts    for indicators: standard error of a count of hosts, per window; None otherwise
    m              for indicators: most cells that a host sets; 0 otherwise
    """

    name: str
    kind: str
    window_s: int
    windows: int
    weight: float
    sigma_local_1024: int
    sigma_total: float
    sigma_local: float
    sigma_released: float
    error_percent: dict[str, float | None]
    sigma_hosts: float | None
    m: int


def section_figures(
    plan: Plan, task: PlannedTask, section: PlannedSection, shape: SectionShape
) -> SectionFigures:
    """Compute one section's figures.

    Raises      ParameterError when its noise is below two steps or its sum may wrap
    """
    delta_sq, delta = shape.delta_sq, sqrt(shape.delta_sq)
    weight = section.weight_millionths
    local = sigma_local_1024(delta_sq, task.T, weight, plan.mu_1e9, plan.h)
    total = sigma_local_1024(delta_sq, task.T, weight, plan.mu_1e9, 1)
    calibrate.check_catalogue_sigma(local)
    if plan.scheme == "masked":
        calibrate.check_modulus(plan.hosts, shape.a // shape.q, local)
    sigma_local = local / SIGMA_UNIT / delta
    released = sigma_local * sqrt(plan.hosts)
    one_host = delta / (shape.a / shape.q) if shape.kind == "indicators" else None
    return SectionFigures(
        name=section.name,
        kind=shape.kind,
        window_s=task.window_s,
        windows=task.T,
        weight=weight / MILLION,
        sigma_local_1024=local,
        sigma_total=total / SIGMA_UNIT / delta,
        sigma_local=sigma_local,
        sigma_released=released,
        error_percent=error_percents(released / plan.hosts, task.window_s),
        sigma_hosts=None if one_host is None else released * one_host,
        m=shape.m,
    )


def indicator_sigma_hosts(plan: Plan, weight_millionths: int, m: int, windows: int) -> float:
    """Return the standard error, in hosts, of a released count of struck hosts.

    m           most indicators one host sets in a window
    windows     T
    """
    total = sqrt(m * windows * MILLION / weight_millionths) / (plan.mu_1e9 / 1e9)
    return total * sqrt(plan.hosts / plan.h)


def error_percents(window_error: float, window_s: int) -> dict[str, float | None]:
    """Turn one window's relative error into percent per period: independent windows average."""
    return {
        name: None if period < window_s else 100 * window_error * sqrt(window_s / period)
        for name, period in PERIODS_S.items()
    }


@lru_cache(maxsize=256)
def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return the least epsilon at which a mu-GDP mechanism has this delta.

    Raises      ParameterError when mu is outside (0, 1000]
    """
    if not 0 < mu <= 1000:
        raise ParameterError("mu", "0 < mu <= 1000", mu)
    import mpmath

    with mpmath.workdps(40):
        precise, low, high = mpmath.mpf(mu), mpmath.mpf(0), mpmath.mpf(1)
        while gaussian_delta(high, precise) > delta:
            low, high = high, 2 * high
        for _ in range(60):
            middle = (low + high) / 2
            if gaussian_delta(middle, precise) > delta:
                low = middle
            else:
                high = middle
        return float(high)


def epsilon_of_share(mu_1e9: int, share: float, delta_1e12: int) -> float:
    """Return the epsilon that a part of a budget amounts to: sqrt(share) of its mu.

    share       spent weight, 0 .. 1
    """
    if not 0 <= share <= 1:
        raise ParameterError("share of the budget", "0 .. 1", share)
    if share == 0:
        return 0.0
    return epsilon_of_mu(mu_1e9 / 1e9 * sqrt(share), delta_1e12 / 1e12)


def group_epsilons(plan: Plan) -> dict[str, float]:
    """Return what the plan's epsilon becomes for more than one host-week, at the same noise.

    k hosts of one person move the sum by k Delta, so mu grows by k; over k weeks independent
    noises add in squares, so mu grows by sqrt k. Two unlike vectors of non-negative readings differ
    by at most sqrt 2 Delta, so replacing one host's data costs sqrt 2 mu.
    """
    factors = {"hosts_2": 2.0, "hosts_8": 8.0, "weeks_4": 2.0, "weeks_52": sqrt(52)}
    factors["replace"] = sqrt(2)
    return {name: _epsilon(plan, factor) for name, factor in factors.items()}


def coalition_epsilons(plan: Plan) -> dict[str, float]:
    """Return what the plan's epsilon becomes where the Leader pools with several operators.

    t covers one operator. Of n_min hosts two or three of t hosts each leave fewer whose noise is
    not known; without an entry where they leave none, or where one operator has all hosts.
    """
    if plan.scheme == "local" or not plan.min_operators:
        return {}
    left = {f"operators_{count}": plan.n_min - count * plan.t for count in (2, 3)}
    return {name: _epsilon(plan, sqrt(plan.h / hosts)) for name, hosts in left.items() if hosts > 0}


def collusion_epsilons(plan: Plan) -> dict[str, float]:
    """Return what remains for one host if both aggregators pool what they have.

    They then see each report without its mask, carrying the host's own noise alone. Per week, per
    hour, and per window of the shortest cadence; a window longer than that counts whole.
    """
    if plan.scheme == "local":
        return {}
    alone = sqrt(plan.h)
    window_s = min(task.window_s for task in plan.tasks)
    return {
        "week": _epsilon(plan, alone * sqrt(_share(plan, None))),
        "hour": _epsilon(plan, alone * sqrt(_share(plan, 3600))),
        "window": _epsilon(plan, alone * sqrt(_share(plan, window_s))),
    }


def _share(plan: Plan, period_s: int | None) -> float:
    """Return the part of a host's weekly budget that one period's reports carry."""
    share = 0.0
    for task in plan.tasks:
        touched = task.T if period_s is None else min(max(period_s // task.window_s, 1), task.T)
        share += task.weight_millionths / MILLION * touched / task.T
    return share


def _epsilon(plan: Plan, factor: float) -> float:
    return epsilon_of_mu(plan.mu_1e9 / 1e9 * factor, plan.delta_1e12 / 1e12)


LLAMA3_DAYS: Final = 54
LLAMA3_HOSTS: Final = 2048

LLAMA3_INTERRUPTIONS: Final = (
    ("faulty GPU", 148),
    ("GPU HBM3 memory", 72),
    ("software bug", 54),
    ("network switch or cable", 35),
    ("unplanned host maintenance", 32),
    ("GPU SRAM memory", 19),
    ("GPU system processor", 17),
    ("NIC", 7),
    ("NCCL watchdog timeout", 7),
    ("silent data corruption", 6),
    ("GPU thermal interface or sensor", 6),
    ("SSD", 3),
    ("power supply", 3),
    ("server chassis", 2),
    ("I/O expansion board", 2),
    ("dependency", 2),
    ("CPU", 2),
    ("system memory", 2),
)
"""Unexpected ones of Llama 3 405B's pre-training: 54 days, 16,384 GPUs in hosts of 8.

Source      Llama Team, "The Llama 3 Herd of Models", 2024, table 5
"""


@dataclass(frozen=True, slots=True)
class ExpectedRow:
    """One cause: hosts expected to be struck in a period, beside the standard error."""

    cause: str
    expected_hosts: float
    standard_error: float
    above_noise: bool


def expected_rows(hosts: int, days: float, standard_error: float) -> Iterator[ExpectedRow]:
    """Say which causes rise above the noise in a period, at the published rates.

    standard_error  of a released count, in hosts
    """
    for cause, interruptions in LLAMA3_INTERRUPTIONS:
        expected = interruptions * days / LLAMA3_DAYS * hosts / LLAMA3_HOSTS
        above = expected >= NOISE_FLOOR * standard_error
        yield ExpectedRow(cause, expected, standard_error, above)
