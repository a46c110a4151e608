"""The second opinion at acceptance: dp-accounting's privacy loss distributions.

The ledger is the gate of every window. This gate runs once, when a host accepts its tasks: it
composes everything one week can touch and adds what a sum of discrete Gaussians lacks of one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, fsum, log, pi, sqrt
from typing import Final

from .calibrate import MILLION, SIGMA_UNIT
from .errors import ParameterError
from .noise_table import table_cut

GATE_MARGIN: Final = 0.001
"""A plan of epsilon 2 passes at 2.001: room for the slack and for the accountant's own rounding."""


@dataclass(frozen=True, slots=True)
class SectionNoise:
    """What one section spends within a week.

    delta_sq         squared sensitivity, steps^2
    sigma_1024       one host's noise, 1/1024 steps
    windows          T
    coordinates      length of the section
    honest_hosts     h: shares of noise nobody may know, in every batch
    """

    delta_sq: int
    sigma_1024: int
    windows: int
    coordinates: int
    honest_hosts: int

    @property
    def noise_multiplier(self) -> float:
        return self.sigma_1024 / SIGMA_UNIT * sqrt(self.honest_hosts / self.delta_sq)

    @property
    def slack(self) -> float:
        """Epsilon to add, because a sum of discrete Gaussians is only nearly one."""
        gap = sum_gap(self.sigma_1024, self.honest_hosts)
        return gap * self.coordinates * self.windows

    @property
    def cut(self) -> float:
        """How far tables, whose tails are cut, are from exact draws of the hosts that count."""
        draws = self.honest_hosts * self.coordinates * self.windows
        return draws * table_cut(self.sigma_1024)


def sum_gap(sigma_1024: int, hosts: int) -> float:
    """Return tau, the greatest log-ratio between a sum of discrete Gaussians and one of them.

    tau = 10 sum_{k=1}^{hosts-1} exp(-2 pi^2 sigma^2 k/(k+1)); terms past the 64th are bounded by it
    Source      Kairouz, Liu, Steinke 2021, theorem 1
    """
    exponent = 2 * (pi * sigma_1024 / SIGMA_UNIT) ** 2
    terms = min(hosts - 1, 64)
    near = fsum(exp(-exponent * k / (k + 1)) for k in range(1, terms + 1))
    far_terms = hosts - 1 - terms
    far = exp(log(far_terms) - exponent * 64 / 65) if far_terms > 0 else 0.0
    return 10 * (near + far)


def epsilon_of(compositions: Sequence[tuple[float, int]], delta: float) -> float:
    """Return the epsilon of Gaussians, (noise multiplier, uses) each, by connect-the-dots.

    Loads dp-accounting (3 s) when first called.
    """
    from dp_accounting import dp_event
    from dp_accounting.pld import pld_privacy_accountant

    accountant = pld_privacy_accountant.PLDAccountant()
    for multiplier, uses in compositions:
        event = dp_event.GaussianDpEvent(multiplier)
        accountant.compose(dp_event.SelfComposedDpEvent(event, uses))
    return float(accountant.get_epsilon(delta))


def gate(
    sections: Sequence[SectionNoise],
    epsilon_millionths: int,
    delta_1e12: int,
) -> float:
    """Return the epsilon of everything a host reports in a week, or refuse it.

    sections    of all tasks of the host
    Raises      ParameterError when it exceeds the plan's epsilon by more than 0.001
    """
    cut = fsum(section.cut for section in sections)
    # Two distributions so far from the exact ones cost (1 + e^epsilon) times that.
    delta = max(0.0, delta_1e12 / 10**12 - cut * (1 + exp(epsilon_millionths / MILLION)))
    compositions = [(section.noise_multiplier, section.windows) for section in sections]
    epsilon = epsilon_of(compositions, delta)
    epsilon += fsum(section.slack for section in sections)
    limit = epsilon_millionths / MILLION + GATE_MARGIN
    if epsilon > limit:
        raise ParameterError("epsilon of a week", f"at most {limit:.6g}", f"{epsilon:.6g}")
    return epsilon
