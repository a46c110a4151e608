"""`make bench-door`: what a newcomer meets in the first hour, in figures."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.agent import Checkpoints, say
from bench.agent_figures import workload_figures
from bench.agent_parts import PAIRS, pairs
from bench.demo import demo_at_80x24
from bench.record import CACHE, ROOT, Figure, merge_result
from pointillist.fleet.party_config_text import MEASURING
from scripts.notebook_page import cells_run, executed
from tests.analytics.test_notebook import play
from transport.settings.config_tree import parse_table

COMMAND: Final = "make bench-door"
FOLDER: Final = CACHE / "door"
MOST_WORDS: Final = 600
MOST_SLOWDOWN_PERCENT: Final = 1.0


def readme() -> list[Figure]:
    """Count words as `wc -w` does."""
    words = len((ROOT / "README.md").read_text(encoding="utf-8").split())
    return [Figure("readme_words", words, "words", MOST_WORDS)]


def notebook() -> list[Figure]:
    """Run docs/notebook.ipynb by a Jupyter kernel on weeks as its test has them; count cells."""
    with TemporaryDirectory() as folder:
        ran = cells_run(executed(play(Path(folder))[0]))
    return [Figure("notebook_cells_run_by_a_kernel", ran, "code cells")]


def configuration() -> list[Figure]:
    """Count the sources that `fleet init` and `fleet pair` leave off."""
    tables = parse_table(MEASURING.encode(), "a generated agent.toml")
    switches = {**tables["sources"], "diagnosis": tables["diagnosis"]}
    off = [
        name
        for name, value in switches.items()
        if (value.get("enabled", True) if isinstance(value, dict) else value) is False
    ]
    return [Figure("sources_off_in_a_generated_configuration", len(off), "sources", 2)]


def slowdown(count: int) -> list[Figure]:
    """Measure a workload beside an agent of a generated configuration; begun again it goes on."""
    kept = Checkpoints(count, FOLDER)
    both = pairs(
        kept.read("pairs") or [], lambda done: kept.keep("pairs", done), say, count, MEASURING
    )
    shutil.rmtree(FOLDER, ignore_errors=True)
    wanted = ("workload_slowdown", "workload_pairs", "pingpong")
    found = workload_figures(both, MOST_SLOWDOWN_PERCENT)
    load = Figure("load_average_of_the_slowdown", os.getloadavg()[0], "at its end")
    return [figure for figure in found if figure.name.startswith(wanted)] + [load]


def main() -> int:
    """Measure, print, write bench/results/door.json; parts that were not asked for stay."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of runs without and with it")
    parts: dict[str, Callable[[], list[Figure]]] = {
        "readme": readme,
        "configuration": configuration,
        "demo": demo_at_80x24,
        "notebook": notebook,
        "slowdown": lambda: slowdown(asked.pairs),
    }
    parser.add_argument("--part", choices=parts, help="this one alone")
    asked = parser.parse_args()
    for name, part in parts.items():
        if asked.part in {None, name}:
            say(name)
            figures = part()
            for figure in figures:
                goal = "" if figure.goal is None else f"  (goal {figure.goal:g})"
                print(f"{figure.name:44} {figure.value:12.3f} {figure.unit}{goal}", flush=True)
            merge_result("door", COMMAND, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
