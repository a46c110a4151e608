"""`make bench-simulator`: every figure of the simulator, from the parts that measure them.

A part is a module of bench with `measure(kept) -> list[Figure]`; what it hands to `kept.get` is
kept in bench/.cache as it ends, under the commit it measured, so that a cut-off run goes on with
what is missing. `--part NAME` measures one part and leaves the others' figures as they stand.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import importlib.util
import json
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.record import CACHE, RESULTS, Figure, commit, write_result
from bench.round import Part, Parts

COMMAND: Final = "make bench-simulator"
MODULES: Final = ("engine", "outcome", "applications", "adversaries")
"""`bench.simulator_<name>`, in this order; one that does not exist is left out."""

NAMED: Final = (
    "masked_times_real_time_100k",
    "exact_times_real_time_100k",
    "peak_memory_gib",
    "cost_growth_1k_to_100k",
    "interval_coverage_percent",
    "hours_to_99_percent_applications",
    "fleet_slowdown_percent",
    "reports_released_percent_dropout_15",
    "real_application_profiles",
)


def modules() -> dict[str, str]:
    """Parts that exist: name -> module."""
    names = {name: f"bench.simulator_{name}" for name in MODULES}
    return {name: module for name, module in names.items() if importlib.util.find_spec(module)}


def collect(folder: Path) -> list[Figure]:
    """Figures of every part that has been measured, the named ones first."""
    found: list[Figure] = []
    for name in MODULES:
        path = folder / f"figures-{name}.json"
        if path.exists():
            found += [Figure(**one) for one in json.loads(path.read_text())]
    place = {name: number for number, name in enumerate(NAMED)}
    return sorted(found, key=lambda figure: place.get(figure.name, len(NAMED)))


def keep(folder: Path, name: str, figures: list[Figure]) -> None:
    """Keep the figures of one part."""
    path = folder / f"figures-{name}.json"
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps([asdict(figure) for figure in figures], indent=1))
    partial.replace(path)


def _show(name: str, part: Part) -> None:
    numbers = {key: value for key, value in part.items() if isinstance(value, int | float)}
    print(f"{name}: " + ", ".join(f"{key} {value:,.3g}" for key, value in numbers.items()))


def main() -> None:
    """Measure what is missing, then write bench/results/simulator.json."""
    parser = argparse.ArgumentParser(prog="bench.simulator", description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="measure every part again")
    parser.add_argument("--part", choices=sorted(modules()), help="measure this one alone")
    options = parser.parse_args()
    folder = CACHE / "simulator"
    # The figures of a part stay until it is measured again; its pieces are of one commit.
    kept = Parts(folder / commit()[:12], options.fresh, _show)
    for name, module in modules().items():
        if options.part in {None, name}:
            keep(folder, name, importlib.import_module(module).measure(kept))
            gc.collect()
    found = collect(folder)
    print(f"wrote {write_result('simulator', COMMAND, found)}")
    missing = [name for name in NAMED if name not in {figure.name for figure in found}]
    for figure in found[: len(NAMED) - len(missing)]:
        goal = "" if figure.goal is None else f" (goal {figure.goal:g})"
        print(f"  {figure.name:40} {figure.value:10.3f} {figure.unit}{goal}")
    if missing:
        print(f"not measured: {', '.join(missing)}; results at {RESULTS}")


if __name__ == "__main__":
    main()
