"""A plan: which sections a cohort reports, how often, with which share of one budget.

A plan is what people write (TOML, see `pointillist/plan_file.py`); a signed task is what comes of
one of its tasks and the catalogue.
"""

from dataclasses import dataclass
from typing import Final

from .calibrate import check_weights, gdp_mu_1e9, honest_hosts, operator_cap, windows_touched
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
        return windows_touched(self.window_s, endless if self.windows is None else self.windows)

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
        return honest_hosts(self.hosts, self.n_min, self.t)

    @property
    def mu_1e9(self) -> int:
        """The budget as a Gaussian trade-off."""
        return gdp_mu_1e9(self.epsilon_millionths, self.delta_1e12)

    @property
    def operator_cap(self) -> int:
        """Most hosts of one operator: t must cover them."""
        return operator_cap(self.n_min)

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
        check_weights([task.weight_millionths for task in self.tasks])
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
            raise ParameterError(
                f"rate of {section.name!r}", "0 < rate <= 1", section.rate_millionths / 1e6
            )
