"""What hosts that cannot measure do to means and shares of hosts: bias, coverage, error.

Rows as agents fill them go through the production encoder, the noise of a whole cohort and the
production estimator; a third of the hosts is blind. Truth is that of the hosts that measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.enrolment.tasks import TaskPlan, build_task
from aggregator.protocol.released import CoarseCounts
from aggregator.statistics.ratios import coverage
from aggregator.statistics.statistics import MEAN_FULL_SCALE, estimate
from bench.parts import Measured, Part, Parts
from bench.record import Figure
from edge_agent.windows.encode import encode_rows
from privacy.calibrate import WEEK_S
from simulator.engine.blocks import summed_noise
from simulator.engine.interface import EngineSettings, Noise
from simulator.streams import philox
from wire.catalogue import UNMEASURED, Catalogue, Section
from wire.task import SectionKind, SectionSpec, Task

HOSTS: Final = 12_500
BLIND: Final = HOSTS // 3
DRAWS: Final = 400
LEVEL: Final = 0.3
"""Mean of full scale, and share of the hosts that an indicator is set on."""
SECTIONS: Final = ("host_cpu", "host_disk", "incidents", "hardware_faults")
WEIGHT: Final = {WEEK_S: 0.1, 3600: 0.0055}
"""By window: of a week noise is little; of an hour, with a mean's weight, as much as it is read."""
RUNS: Final = {
    "unmeasured_week": (WEEK_S, BLIND),
    "unmeasured_none": (WEEK_S, 0),
    "unmeasured_hour": (3600, BLIND),
    "unmeasured_before": (WEEK_S, BLIND),
}
"""By name: window and hosts that are blind; the last of the catalogue before."""


@dataclass(slots=True)
class _Found:
    """Over draws: released share less the true one, the plain error, hits, and shares withheld."""

    off: list[float]
    plain: list[float]
    held: int = 0
    withheld: int = 0


def measure(kept: Parts) -> Measured:
    """Count bias, coverage and error; the same with the catalogue before."""
    draws = kept.scaled(DRAWS, 20)
    shipped = Catalogue.load()
    former = shipped.former or shipped
    rows = [
        kept.get(name, partial(_play, former if "before" in name else shipped, *asked, draws))
        for name, asked in RUNS.items()
    ]
    week, whole, hour, before = (row["sections"] for row in rows)
    means = [row for row in week if row["kind"] == SectionKind.MEAN]
    worst = max(week, key=lambda row: abs(row["bias_percent"]))
    least = min((*week, *whole, *hour), key=lambda row: row["coverage_percent"])
    unit = "percent of the truth"
    return Measured(
        [
            Figure("mean_bias_unmeasured_percent", worst["bias_percent"], unit, 0),
            Figure("mean_bias_error_percent", worst["bias_error_percent"], "standard error"),
            Figure(
                "mean_bias_unmeasured_before_percent",
                min(row["bias_percent"] for row in before), unit,
            ),
            Figure("mean_coverage_percent", least["coverage_percent"], "percent, the worst", 95),
            Figure("mean_coverage_low_percent", least["low_percent"], "its lower 99 % bound"),
            Figure(
                "mean_error_factor",
                max(row["error_factor"] for row in whole), "of that of a known number of hosts",
            ),
            Figure(
                "mean_error_factor_unmeasured",
                max(row["error_factor"] for row in means), "the same, a third of the hosts blind",
            ),
        ],
        {"unmeasured": {"hosts": HOSTS, "level": LEVEL, "draws": draws, "runs": rows}},
    )  # fmt: skip


def _play(catalogue: Catalogue, window_s: int, blind: int, draws: int) -> Part:
    task = _task(catalogue, window_s)
    sections = [(catalogue.section(spec.name), spec) for spec in task.sections]
    found = {section.name: _Found([], []) for section, _ in sections}
    rng = philox(1, "blind", str(window_s), blind)
    settings, counts = EngineSettings(noise=Noise.SEEDED, seed=1), CoarseCounts.of(task, HOSTS)
    for draw in range(draws):
        rows, truth = _rows(task, sections, blind, rng)
        steps = encode_rows(task, rows, rng.bytes).sum(axis=0)
        place = f"unmeasured/{blind}/{draw}"
        noise = summed_noise(settings, place, window_s, task.sigma_vector_1024(), HOSTS)
        cells = {(c.section, c.cell): c for c in estimate(task, catalogue, steps + noise, counts)}
        for section, spec in sections:
            cell, one = cells[section.name, section.cells[0]], found[section.name]
            full = 1 if spec.kind is SectionKind.INDICATORS else MEAN_FULL_SCALE / spec.q
            # What the error is where the number of hosts is known, and all of them measured.
            one.plain.append(float(noise[task.slices()[section.name].start]) / full)
            if spec.kind is SectionKind.INDICATORS:
                one.plain[-1] /= spec.coordinate_cap
            if cell.share is None or cell.share_low is None or cell.share_high is None:
                one.withheld += 1
                continue
            one.off.append(cell.share - truth[section.name])
            one.held += int(cell.share_low <= truth[section.name] <= cell.share_high)
    return {
        "window_s": window_s, "blind": blind,
        "sections": [_row(section, found[section.name]) for section, _ in sections],
    }  # fmt: skip


def _task(catalogue: Catalogue, window_s: int) -> Task:
    weight = round(WEIGHT[window_s] * 1_000_000)
    last = window_s * (20_000 if window_s < WEEK_S else 200)
    return build_task(
        catalogue,
        TaskPlan(
            series="blind", domain="demo", window_s=window_s, first_window=0, last_window=last,
            weights=dict.fromkeys(SECTIONS, weight), gpus_per_host=8, n_max=HOSTS,
            n_min=HOSTS * 8 // 10, t=HOSTS // 10, leader_pk=bytes(32), helper_pk=b"h" * 32,
            expiry=10**10,
        ),
    )  # fmt: skip


def _rows(
    task: Task, sections: list[tuple[Section, SectionSpec]], blind: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], dict[str, float]]:
    """Draw what hosts gather of each section's first cell; the first hosts measure nothing."""
    rows = np.zeros((HOSTS, task.d - 2), dtype=np.int64)
    truth = {}
    for section, spec in sections:
        place = task.slices()[section.name]
        own = rows[:, place.start - 2 : place.stop - 2]
        if spec.kind is SectionKind.INDICATORS:
            own[blind:, 0] = rng.random(HOSTS - blind) < LEVEL
            truth[section.name] = float(own[blind:, 0].mean())
        else:
            own[blind:, 0] = rng.beta(3, 7, HOSTS - blind) * MEAN_FULL_SCALE
            truth[section.name] = float(own[blind:, 0].mean()) / MEAN_FULL_SCALE
        if section.counts_unmeasured:
            own[:blind, section.index(UNMEASURED)] = spec.unmeasured
    return rows, truth


def _row(section: Section, found: _Found) -> Part:
    off = np.array(found.off)
    plain = float(np.std(found.plain)) / HOSTS
    held = coverage(found.held, len(off))
    return {
        "section": section.name, "kind": section.kind.value,
        "bias_percent": 100 * float(off.mean()) / LEVEL,
        "bias_error_percent": 100 * float(off.std()) / LEVEL / len(off) ** 0.5,
        "coverage_percent": 100 * held.rate, "low_percent": 100 * held.low,
        "error_factor": float(off.std()) / plain,
        "withheld": found.withheld,
    }  # fmt: skip
