"""How much GPU time is given to the right application: on the hosts, and after the noise.

Hosts decide by the production classifier, from the launches of one window of each process. What
they were taught is one table of each application; what they meet is the same program on other
hosts, with its jitter, and in a large job with its exchange and its stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.statistics.ratios import BELOW_NOISE_ERRORS
from kernels.families import UNKNOWN_APPLICATION
from kernels.kernel_mix import mix_rows
from kernels.signatures import ApplicationClassifier, Signature, Signatures
from privacy.calibrate import MILLION, gdp_mu_1e9, windows_touched
from simulator.applications import Application, Variant, derive
from simulator.fleet.fleet_rows import MIX_JITTER
from simulator.workloads import Workload

LAUNCHES: Final = 5_000
"""Of one window of a process; the classifier itself looks at 35,000 to 40,000."""

STAGED_GPUS: Final = 64
"""From here on a job is taken to be a pipeline: its first and last stage differ from the others."""

HOST_GPUS: Final = 8
_MOST_PROCESSES: Final = 24
"""Of one job are drawn: hosts of one stage differ by their jitter alone."""


@dataclass(frozen=True, slots=True)
class Attribution:
    """Shares of GPU time; they sum to 1.

    right       the class is the right one; for a program that was never taught, "unknown"
    wrong       another class
    unanswered  "unknown" for a program that was taught
    """

    right: float
    wrong: float
    unanswered: float


def signature_of(workload: Workload) -> Signature:
    """Make the profile that a host would be taught from a table."""
    kernels = (
        (row.name, row.family, row.launches_per_1000_steps, row.time_ns_per_step)
        for row in workload.kernels
    )
    source = f"{workload.source} {workload.source_file}"
    rows = tuple(mix_rows(kernels))
    return Signature(workload.name, workload.application, workload.gpu_model, source, rows)


def teach(applications: Sequence[Application]) -> Signatures:
    """Learn every table of these applications, thresholds included."""
    return Signatures.train([signature_of(application.workload) for application in applications])


def job_tables(application: Application, gpus: int) -> list[tuple[float, Workload]]:
    """Say what the ranks of a job of this size run: (share of its GPU time, table).

    Above one host they exchange; from 64 GPUs on one rank in eight is of the first stage and one
    of the last. All but the table itself are variants by rule.
    """
    table = application.workload
    if gpus <= HOST_GPUS or (application.variant is not None and application.variant.exchange):
        return [(1.0, table)]

    def ranked(name: str, **rules: str) -> Workload:
        variant = Variant(exchange=True, stage=rules.get("stage", ""))
        return derive(table, variant, f"{table.name}_{name}", table.application)

    if gpus < STAGED_GPUS:
        return [(1.0, ranked("exchange"))]
    stages = [(1 / 8, ranked("first", stage="first")), (1 / 8, ranked("last", stage="last"))]
    return [(6 / 8, ranked("middle")), *stages]


def answers(
    signatures: Signatures, application: Application, gpus: int, rng: np.random.Generator
) -> Mapping[str, float]:
    """Let every process of a job be classified; give the share of its GPU time by answer."""
    found: Counter[str] = Counter()
    processes = min(max(gpus, 1), _MOST_PROCESSES)
    tables = job_tables(application, gpus)
    for share, table in tables:
        each = max(round(processes * share), 1)
        for process in range(each):
            classifier = ApplicationClassifier(signatures)
            for row, launches in zip(table.kernels, _launches(table, rng), strict=True):
                classifier.observe(process, row.name, row.family, launches, None)
            found[classifier.application(process)] += share / each  # type: ignore[assignment]
    return found


def _launches(table: Workload, rng: np.random.Generator) -> list[int]:
    """Draw one window's launches of each kernel: the table's shares with a host's jitter."""
    shares = np.array([row.launches_per_1000_steps for row in table.kernels], dtype=np.float64)
    shares *= np.exp(rng.normal(0.0, MIX_JITTER, len(shares)))
    drawn: list[int] = rng.multinomial(LAUNCHES, shares / shares.sum()).tolist()
    return drawn


def attribute(
    taught: Sequence[Application],
    met: Sequence[Application],
    gpus: int,
    seed: int = 0,
) -> Attribution:
    """Classify one job of each met application, all with the same GPU time.

    taught      candidates; a met application of another class is one that nobody taught
    gpus        of each job
    Raises      ValueError without candidates or jobs
    """
    if not taught or not met or gpus < 1:
        raise ValueError("expected candidates, applications that are met and a GPU, got none")
    rng = np.random.default_rng(seed)
    signatures = teach(taught)
    known = {application.workload.application for application in taught}
    right = wrong = unanswered = 0.0
    for application in met:
        truth = application.workload.application
        wanted = truth if truth in known else UNKNOWN_APPLICATION
        for answer, share in answers(signatures, application, gpus, rng).items():
            if answer == wanted:
                right += share / len(met)
            elif answer == UNKNOWN_APPLICATION:
                unanswered += share / len(met)
            else:
                wrong += share / len(met)
    return Attribution(right, wrong, unanswered)


def share_error(
    epsilon: float, hosts: int, weight: float, period_s: int, window_s: int = 60
) -> float:
    """Standard error of a released share of all GPU time, summed over a period.

    hosts       of the cohort; n_min is 0.8 of them and t a tenth, as in the shipped plan
    weight      of the section, of 1
    """
    mu = gdp_mu_1e9(round(epsilon * MILLION), 1_000) / 1e9
    touched = windows_touched(window_s, 1 << 62)
    # Delta is full scale, so that the share's error is sigma / hosts in units of Delta.
    window = sqrt(touched / weight) / mu * sqrt(1 / 0.7) / hosts
    return window * sqrt(window_s / period_s)


def released_overlap(
    truth: NDArray[np.float64],
    classified: NDArray[np.float64],
    error: float,
    rng: np.random.Generator,
) -> float:
    """Share of the GPU time that a release gives to the right class.

    truth, classified   float64[classes], shares of all GPU time by true class and as hosts say
    error               standard error of each released share
    Returns             sum over the cells that are shown of what both agree on, of the true sum;
                        a cell under 2 standard errors is shown as noise, and gives nothing
    """
    released = classified + rng.normal(0.0, error, len(truth)) if error else classified
    shown = released >= BELOW_NOISE_ERRORS * error
    agreed = np.minimum(truth, np.maximum(released, 0.0))[shown].sum()
    return float(agreed / truth.sum())


@dataclass(frozen=True, slots=True)
class ReleasedAttribution:
    """What is right after the release, at one setting.

    on_hosts    share of GPU time that the hosts themselves give to the right class
    released    the same after noise, mean over draws, cells below 2 standard errors left out
    shown       named classes that are drawn as numbers, mean over draws
    """

    candidates: int
    epsilon: float
    hosts: int
    period_s: int
    busy_share: float
    on_hosts: float
    released: float
    shown: float


def attribute_released(
    taught: Sequence[Application],
    met: Sequence[Application],
    gpus: int,
    *,
    epsilon: float,
    hosts: int,
    weight: float = 0.10,
    period_s: int = 86_400,
    busy_share: float = 0.75,
    draws: int = 50,
    seed: int = 0,
) -> ReleasedAttribution:
    """Classify a mix of equal applications, release its shares with noise, and compare.

    busy_share  GPU time that is worked, of all: what the noise is relative to
    """
    rng = np.random.default_rng(seed)
    signatures = teach(taught)
    known = sorted(
        {application.workload.application for application in taught} - {UNKNOWN_APPLICATION}
    )
    places = {name: at for at, name in enumerate([*known, UNKNOWN_APPLICATION])}
    truth, said = np.zeros(len(places)), np.zeros(len(places))
    agreed = 0.0
    for application in met:
        wanted = places.get(application.workload.application, places[UNKNOWN_APPLICATION])
        truth[wanted] += busy_share / len(met)
        for answer, share in answers(signatures, application, gpus, rng).items():
            said[places[answer]] += busy_share * share / len(met)
            agreed += share / len(met) * (places[answer] == wanted)
    error = share_error(epsilon, hosts, weight, period_s)
    released = [released_overlap(truth, said, error, rng) for _ in range(draws)]
    named = said[:-1] + rng.normal(0.0, error, (draws, len(known)))
    shown = (named >= BELOW_NOISE_ERRORS * error).sum(axis=1).mean()
    return ReleasedAttribution(
        len(known), epsilon, hosts, period_s, busy_share, agreed, float(np.mean(released)),
        float(shown),
    )  # fmt: skip
