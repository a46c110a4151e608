"""How often intervals of estimated GPU time hold the truth: made-up programs, and the library."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Final

import numpy as np

from bench.gpu_time_mock import measured
from bench.gpu_time_outcomes import (
    SPANS,
    Outcome,
    bias_percent,
    coverage_percent,
    outcomes,
    stated_figures,
)
from bench.gpu_time_workloads import WORKLOADS, followed, program
from bench.parts import Measured, Part, Parts
from bench.record import Figure
from collectors.gpu_time.segment import RowKind

_SEED: Final = 20
_RUNS: Final = 10
_LIBRARY_S: Final = 240.0
_NOMINAL: Final = 95.0
"""The goal is 94 to 96."""


def simulated(
    seed: int, runs: int, names: Iterable[str] = tuple(WORKLOADS)
) -> dict[str, list[Outcome]]:
    """Follow each program, launched and as graphs, so often; give what came of each."""
    rng = np.random.default_rng(seed)
    found: dict[str, list[Outcome]] = {}
    for name in names:
        for kind in (RowKind.KERNEL, RowKind.NODE):
            of = program(name, kind, rng)
            key = name if kind is RowKind.KERNEL else f"{name}_graphs"
            found[key] = [o for _ in range(runs) for o in outcomes(list(followed(of, rng)))]
    return found


def simulated_figures(found: dict[str, list[Outcome]]) -> list[Figure]:
    """Give what made-up programs showed."""
    pooled = [outcome for of in found.values() for outcome in of]
    by_program = {name: coverage_percent(of) for name, of in found.items()}
    return [
        *stated_figures("simulated_time", pooled),
        Figure("simulated_time_coverage_percent", coverage_percent(pooled), "%"),
        *(
            Figure(
                f"simulated_time_coverage_percent_{windows}_windows",
                coverage_percent(o for o in pooled if o.windows == windows), "%",
            )
            for windows in SPANS
        ),
        *(Figure(f"simulated_time_coverage_percent_{n}", p, "%") for n, p in by_program.items()),
        Figure("simulated_time_coverage_percent_worst", min(by_program.values()), "%"),
        Figure(
            "simulated_time_bias_percent_worst",
            max((bias_percent(of) for of in found.values()), key=abs), "%",
        ),
    ]  # fmt: skip


def library_figures(found: Sequence[Outcome]) -> list[Figure]:
    """Give what the library showed."""
    return [
        *stated_figures("library_time", found),
        Figure("library_time_coverage_percent", coverage_percent(found), "%"),
        Figure("library_time_bias_percent", bias_percent(found), "%"),
    ]


def measure(kept: Parts) -> Measured:
    """Try both."""

    def part() -> Part:
        made_up = simulated(_SEED, kept.scaled(_RUNS))
        library = measured(_LIBRARY_S * kept.scale, _SEED)
        pooled = [outcome for of in (*made_up.values(), library) for outcome in of]
        found = [
            Figure("corrected_time_coverage_percent", coverage_percent(pooled), "%", _NOMINAL),
            *simulated_figures(made_up),
            *library_figures(library),
        ]
        return {"figures": [asdict(figure) for figure in found]}

    return Measured([Figure(**figure) for figure in kept.get("coverage", part)["figures"]])
