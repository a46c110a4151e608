"""What readers learn of the number of hosts, and whether intervals hold by coarse denominators.

A day of minutes of a fleet of three GPU models, whose hosts come and go, is released as a Leader
packs it. A guesser sees every column that repeats itself, and what is left of noisy ones once their
released cells are taken off; it learns half of the windows by heart and guesses the others.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from aggregator.protocol.released import Capacity, CoarseCounts, ReleasedWindow
from aggregator.releases.period_pack import write_period
from aggregator.releases.releases import query
from aggregator.statistics.ratios import coverage, fieller
from aggregator.statistics.statistics import basis_of, estimate, named_cells
from bench.parts import Measured, Part, Parts
from bench.record import Figure
from pointillist.plan_file import default_plan
from simulator.engine.interface import EngineSettings, Noise
from simulator.engine.simulation import Simulation
from simulator.scenario import load
from wire.catalogue import UNMEASURED, Catalogue
from wire.task import Task

MINUTE_S: Final = 60
WINDOWS: Final = 1440
UP: Final = 0.985
KINDS: Final = (((2, 8), 8_000), ((1, 8), 4_398), ((2, 7), 1), ((5, 8), 1), ((6, 4), 100))
"""GPU model and GPUs of hosts, and how many there are."""
REPEATED: Final = 3
"""A column that takes fewer different values than a third of the windows is learned by heart."""
DRAWS: Final = 2_000
OFF: Final = (-50, -25, 0, 25, 49)
"""Hosts above the middle of a bucket."""
WEEK: Final = 10_080


def measure(kept: Parts) -> Measured:
    found = kept.get("presence", told)
    held = kept.get("presence_coverage", held_intervals)
    rates = [coverage(row["hits"], row["trials"]).rate for row in held["rows"]]
    return Measured(
        [
            Figure(
                "n_recovered_points_above_guessing", found["points"],
                "percentage points more of windows whose hosts are told exactly than by n_hosts", 0,
            ),
            Figure("n_guessed_percent", found["guessed"], "percent of windows, by n_hosts alone"),
            Figure(
                "coarse_coverage_worst_percent", 100 * min(rates),
                "percent of 95 % intervals of shares that hold the truth, worst place in a bucket",
                95,
            ),
            Figure(
                "week_interval_wider_times", held["wider"],
                "times as wide as by exact denominators: a week's largest cell, 30 % of GPU time",
            ),
        ],
        {"coarse_coverage": held["rows"]},
    )  # fmt: skip


def _task(catalogue: Catalogue) -> Task:
    scenario = load("steady").with_(operators=(1.0,) * 10)
    tasks = Simulation(
        scenario, default_plan(), catalogue, EngineSettings(noise=Noise.SEEDED)
    ).tasks
    return replace(next(task for task in tasks if task.window_s == MINUTE_S), domain="fleet")


def told() -> Part:
    """Guess the hosts of half of the windows from all columns, and from n_hosts alone."""
    catalogue, rng = Catalogue.load(), np.random.default_rng(11)
    task = _task(catalogue)
    own = tuple(spec for spec in task.sections if spec.name.startswith("kernel_mix"))
    task = replace(task, sections=own)
    start = task.first_window // 604_800 * 604_800
    windows, hosts = [], []
    for at in range(WINDOWS):
        up = [int(rng.binomial(count, UP)) for _, count in KINDS]
        n = sum(up)
        capacity = Capacity.of(
            kind for (kind, _), count in zip(_kinds(), up, strict=True) for _ in range(count)
        )
        vector = _noise(task, n, rng)
        windows.append(
            ReleasedWindow(
                bytes(32), task, 0, start + MINUTE_S * at, n, vector, {"late": int(rng.poisson(2))},
                start + 90.0, start + 95.0, capacity,
            )
        )  # fmt: skip
        hosts.append(n)
    with tempfile.TemporaryDirectory() as name:
        write_period(Path(name), catalogue, windows)
        features = pd.DataFrame(_features(Path(name)))
    learned = features.loc[:, features.nunique() < WINDOWS / REPEATED]
    by_all = _right(list(learned.itertuples(index=False, name=None)), hosts)
    by_count = _right([(count,) for count in features["n_hosts"]], hosts)
    return {"points": 100 * (by_all - by_count), "guessed": 100 * by_count}


def _kinds() -> Iterator[tuple[tuple[tuple[int, int], ...], int]]:
    for kind, count in KINDS:
        yield (kind,), count


def _noise(task: Task, n: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    sigma = task.sigma_vector_1024() / 1024 * np.sqrt(n)
    vector = np.rint(rng.normal(size=task.d) * sigma).astype(np.int64)
    vector[:2] = n
    return vector  # type: ignore[no-any-return]


def _features(folder: Path) -> dict[str, list[float]]:
    """Give every numeric column that repeats itself, of each section's and model's first cells.

    Noise is no secret where its cell is released: wholes are looked at with the hole put back, too.
    """
    rows = query(
        f"FROM with_basis WHERE cell LIKE '%{UNMEASURED}' OR cell LIKE '%gemm' OR cell LIKE '%conv'"
        " ORDER BY window_start, section, cell",
        folder,
    )
    parts = rows["cell"].str.split("/")
    rows["place"] = rows["section"] + "/" + rows["cell"]
    rows["model"] = parts.str[0].where(rows["section"].str.endswith("_by_model"), "")
    group = ["window_start", "section", "model"]
    holes = rows[parts.str[-1] == UNMEASURED].set_index(group)["value"].rename("hole")
    rows = rows.join(holes, on=group)
    rows["wall"] = rows["whole"] + rows["hole"]
    rows["each"] = rows["whole"] * rows["share"] / rows["value"]
    found: dict[str, list[float]] = {}
    numbers = [name for name in rows.select_dtypes("number") if name != "cohort"]
    numbers += ["wall", "each"]
    for name in numbers:
        wide = rows.pivot(index="window_start", columns="place", values=name)
        repeated = wide.loc[:, wide.nunique() < WINDOWS / REPEATED]
        for place in repeated:
            found[f"{name} of {place}"] = repeated[place].fillna(-1.0).tolist()
    first = rows.groupby("window_start").first()
    found["n_hosts"] = first["n_hosts"].tolist()
    found["rejections"] = [float(len(text)) for text in first["rejections"]]
    return found


def _right(seen: Sequence[tuple[float, ...]], hosts: Sequence[int]) -> float:
    """Learn the even windows, and give the part of the odd ones that is told exactly."""
    by_seen: dict[tuple[float, ...], Counter[int]] = {}
    for key, n in zip(seen[::2], hosts[::2], strict=True):
        by_seen.setdefault(key, Counter())[n] += 1
    most = Counter(hosts[::2]).most_common(1)[0][0]
    guessed: Iterable[int] = (
        by_seen[key].most_common(1)[0][0] if key in by_seen else most for key in seen[1::2]
    )
    return float(np.mean([guess == n for guess, n in zip(guessed, hosts[1::2], strict=True)]))


def held_intervals() -> Part:
    """Count intervals of shares that hold the truth, by where in its bucket the count lies.

    The mean of a week has the noise of a minute over the root of its minutes.
    """
    catalogue, rng = Catalogue.load(), np.random.default_rng(12)
    task = _task(catalogue)
    (own,) = (spec for spec in task.sections if spec.name == "kernel_mix")
    middle, rows = 12_000, []
    for span, windows in (("minute", 1), ("week", WEEK)):
        sigma = round(own.sigma_1024 / windows**0.5)
        quiet = replace(task, sections=(replace(own, sigma_1024=sigma),))
        for off in OFF:
            n, hits, trials = middle + off, 0, 0
            capacity = Capacity.of([((2, 8),)] * (n - 4_000) + [((1, 8),)] * 4_000)
            counts = CoarseCounts.of(quiet, n, capacity)
            true, shares = _truth(quiet, catalogue, n)
            for _ in range(DRAWS):
                drawn = _noise(quiet, n, rng)
                drawn[:2] = 0
                for cell in estimate(quiet, catalogue, true + drawn, counts):
                    share = shares.get((cell.section, cell.cell))
                    if share is None or cell.share_low is None or cell.share_high is None:
                        continue
                    hits += cell.share_low <= share <= cell.share_high
                    trials += 1
            rows.append({"span": span, "off": off, "hits": int(hits), "trials": trials})
    return {"rows": rows, "wider": _wider(task, catalogue, middle)}


def _truth(
    task: Task, catalogue: Catalogue, n: int
) -> tuple[npt.NDArray[np.int64], dict[tuple[str, str], float]]:
    """Give a noiseless vector: 30 % of the GPU time is of one family, a tenth is not measured."""
    vector = np.zeros(task.d, np.int64)
    vector[:2] = n
    shares: dict[tuple[str, str], float] = {}
    for spec, place in zip(task.sections, task.slices().values(), strict=True):
        section = catalogue.section(spec.name)
        if spec.name != "kernel_mix":
            continue
        wall = n * 8 * task.window_s * 1000 / spec.q
        for cell, part in (("gpu_time/gemm", 0.27), (UNMEASURED, 0.1), ("idle", 0.63)):
            vector[place.start + section.index(cell)] = round(wall * part)
            shares[spec.name, cell] = part if cell == UNMEASURED else part / 0.9
    return vector, shares


def _wider(task: Task, catalogue: Catalogue, n: int) -> float:
    """Give how much wider a week's interval of 30 % is than by exact denominators."""
    counts = CoarseCounts.of(task, n, Capacity.of([((2, 8),)] * n))
    vector, _ = _truth(task, catalogue, n)
    section = catalogue.section("kernel_mix")
    sections = basis_of(task, catalogue, vector, counts)
    basis = next(one for one in sections if one.section == section.name)
    at = named_cells(section).tolist().index(section.index("gpu_time/gemm"))
    value = WEEK * basis.steps[at] * basis.scale[at]
    terms = [
        WEEK * getattr(basis, name)[at]
        for name in ("whole", "variance", "whole_variance", "covariance", "sampling")
    ]
    widths = []
    for bound in (0.0, WEEK * basis.whole_bound[at]):
        x, d, vx, vd, cov, sampling = (np.array([one]) for one in (value, *terms))
        found = fieller(x, d, vx, vd, cov, sampling, bound)
        widths.append(float(found.high[0] - found.low[0]))
    return widths[1] / widths[0]
