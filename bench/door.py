"""What a newcomer meets in the first hour, in figures: make bench-door."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.agent import PAIRS, pairs, workload_figures
from bench.demo import demo_at_80x24
from bench.parts import Measured, Parts
from bench.record import Figure
from pointillist.fleet.party_config_text import MEASURING
from scripts.notebook_page import cells_run, executed
from tests.analytics.test_notebook import play

MOST_SLOWDOWN_PERCENT: Final = 1.0


def demo(_kept: Parts) -> Measured:
    """Play the demo on a terminal of 80x24."""
    return Measured(demo_at_80x24())


def notebook(_kept: Parts) -> Measured:
    """Run docs/notebook.ipynb by a Jupyter kernel on weeks as its test has them; count cells."""
    with TemporaryDirectory() as folder:
        ran = cells_run(executed(play(Path(folder))[0]))
    return Measured([Figure("notebook_cells_run_by_a_kernel", ran, "code cells")])


def slowdown(kept: Parts) -> Measured:
    """Measure a workload beside an agent of a generated configuration."""
    both = pairs(kept, kept.scaled(PAIRS, 2), MEASURING)
    wanted = ("workload_slowdown", "workload_pairs", "pingpong")
    found = workload_figures(both, MOST_SLOWDOWN_PERCENT)
    return Measured([figure for figure in found if figure.name.startswith(wanted)])
