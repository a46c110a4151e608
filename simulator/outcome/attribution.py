"""GPU time given to the right application: on the hosts, and after the noise.

Hosts decide by the production classifier. They were trained on one table of each application, and
meet the same program on other hosts, with jitter, and in large jobs with exchange and stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from simulator.applications import Application, Variant, Workload, class_places, derive
from simulator.fleet.fleet_model import FleetModel
from simulator.fleet.fleet_rows import MIX_JITTER
from simulator.fleet.hosts import IDLE, SEEN_WORDS, unpack
from wire.catalogue import Catalogue

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

    right       the class is the right one; for a program that is not in the training set, "unknown"
    wrong       another class
    unanswered  "unknown" for a program of the training set
    """

    right: float
    wrong: float
    unanswered: float


def train(applications: Sequence[Application]) -> Signatures:
    return Signatures.train([_signature(application.workload) for application in applications])


def _signature(workload: Workload) -> Signature:
    kernels = (
        (row.name, row.family, row.launches_per_1000_steps, row.time_ns_per_step)
        for row in workload.kernels
    )
    source = f"{workload.source} {workload.source_file}"
    rows = tuple(mix_rows(kernels))
    return Signature(workload.name, workload.application, workload.gpu_model, source, rows)


def job_tables(application: Application, gpus: int) -> list[tuple[float, Workload]]:
    """Say what the ranks of a job of this size run: (share of its GPU time, table).

    Above one host they exchange; from 64 GPUs on one in eight is of the first, one of the last
    stage.
    """
    table = application.workload
    if gpus <= HOST_GPUS or (application.variant is not None and application.variant.exchange):
        return [(1.0, table)]

    def ranked(name: str, stage: str = "") -> Workload:
        variant = Variant(exchange=True, stage=stage)
        return derive(table, variant, f"{table.name}_{name}", table.application)

    if gpus < STAGED_GPUS:
        return [(1.0, ranked("exchange"))]
    return [
        (6 / 8, ranked("middle")),
        (1 / 8, ranked("first", "first")),
        (1 / 8, ranked("last", "last")),
    ]


def answers(
    signatures: Signatures, application: Application, gpus: int, rng: np.random.Generator
) -> Mapping[str, float]:
    """Let every process of a job be classified; give the share of its GPU time by answer."""
    found: Counter[str] = Counter()
    processes = min(max(gpus, 1), _MOST_PROCESSES)
    for share, table in job_tables(application, gpus):
        each = max(round(processes * share), 1)
        for process in range(each):
            classifier = ApplicationClassifier(signatures)
            for row, launches in zip(table.kernels, _launches(table, rng), strict=True):
                classifier.observe(process, row.name, row.family, launches)
            found[classifier.application(process)] += share / each  # type: ignore[assignment]
    return found


def _launches(table: Workload, rng: np.random.Generator) -> list[int]:
    """Draw one window's launches of each kernel: the table's shares with a host's jitter."""
    shares = np.array([row.launches_per_1000_steps for row in table.kernels], dtype=np.float64)
    shares *= np.exp(rng.normal(0.0, MIX_JITTER, len(shares)))
    drawn: list[int] = rng.multinomial(LAUNCHES, shares / shares.sum()).tolist()
    return drawn


def attribute(
    training: Sequence[Application],
    met: Sequence[Application],
    gpus: int,
    seed: int = 0,
) -> Attribution:
    """Classify one job of each met application, all with the same GPU time and number of GPUs.

    Raises      ValueError without candidates or jobs
    """
    if not training or not met or gpus < 1:
        raise ValueError("expected candidates, applications that are met and a GPU, got none")
    rng = np.random.default_rng(seed)
    signatures = train(training)
    known = {application.workload.application for application in training}
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
    """Standard error of a released share of all GPU time over a period; weight of its section."""
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
    error               standard error of each released share; under 2 of them nothing is shown
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
    training: Sequence[Application],
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
    """Classify a mix of equal applications, release its shares with noise, and compare."""
    rng = np.random.default_rng(seed)
    signatures = train(training)
    known = sorted(
        {application.workload.application for application in training} - {UNKNOWN_APPLICATION}
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


DAY_S: Final = 86_400
HOUR_S: Final = 3_600
_WINDOW_S: Final = 60


@dataclass(frozen=True, slots=True)
class DayRuns:
    """One day of a fleet.

    host, application   int64[pairs]: this application ran on this host; applications by number
    windows             int64[pairs]: minute windows of the day in which it ran there
    gpu_s               float64[24, applications]: GPU-seconds of work, by hour
    reporting           bool[hosts]: the day's report came in time
    busy_share          GPUs that a job held, of all, mean of the day
    """

    host: NDArray[np.int64]
    application: NDArray[np.int64]
    windows: NDArray[np.int64]
    gpu_s: NDArray[np.float64]
    reporting: NDArray[np.bool_]
    busy_share: float

    @property
    def hosts_of(self) -> NDArray[np.int64]:
        told = self.reporting[self.host]
        return np.bincount(self.application[told], minlength=self.gpu_s.shape[1])


def live_days(
    model: FleetModel, catalogue: Catalogue, days: int, window_s: int = _WINDOW_S
) -> Iterator[DayRuns]:
    """Let a fleet live so many days from its scenario's start.

    window_s    looked at at a time, a divisor of an hour; it counts as that many minutes
    """
    start_s = model.scenario.start_s
    own = class_places(model.applications, catalogue)
    places, number = np.unique(own, return_inverse=True)
    for day in range(days):
        yield _day(model, start_s + day * DAY_S, places, number, window_s)


def _day(
    model: FleetModel,
    start_s: int,
    places: NDArray[np.int64],
    number: NDArray[np.int64],
    window_s: int,
) -> DayRuns:
    """Live one day; `number` int64[tables]: which of `places` each table counts under."""
    inventory = model.inventory
    counts = np.zeros((inventory.hosts, len(places)), dtype=np.uint16)
    gpu_s = np.zeros((DAY_S // HOUR_S, len(places)))
    work = np.array([table.workload.busy_millionths / 1e6 for table in model.applications])
    held = 0.0
    for at in range(0, DAY_S, window_s):
        state = model.at(start_s + at, window_s)
        active = np.flatnonzero(state.seen.any(axis=1))
        row, column = np.nonzero(unpack(state.seen[active], 64 * SEEN_WORDS)[:, places])
        counts[active[row], column] += 1
        busy = np.flatnonzero(state.application != IDLE)
        which = state.application[busy]
        gpus = state.busy[busy] * inventory.gpus[busy].astype(np.float64)
        held += float(gpus.sum())
        done = gpus * work[which] * window_s
        gpu_s[at // HOUR_S] += np.bincount(number[which], done, minlength=len(places))
    reporting = model.at(start_s, DAY_S).reporting
    host, application = np.nonzero(counts)
    share = held / (DAY_S // window_s) / inventory.total_gpus
    windows = counts[host, application].astype(np.int64) * (window_s // _WINDOW_S)
    return DayRuns(host, application, windows, gpu_s, reporting, share)
