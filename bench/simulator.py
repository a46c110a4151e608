"""`make bench-simulator`: every figure of the simulator, from the parts that measure them.

A part is a module of bench with `measure(kept) -> Measured`, and a result file of its own; what it
hands to `kept.get` is kept in bench/.cache as it ends, under the commit it measured, so that a
cut-off run goes on with what is missing. `--part NAME` measures one part alone.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
from typing import Final

from bench.parts import Part, Parts
from bench.record import CACHE, RESULTS, ROOT, Figure, commit, merge_result, write_result

COMMAND: Final = "make bench-simulator"
PARTS: Final = {
    "engine": "simulator",
    "outcome": "simulator_outcome",
    "coverage": "simulator_coverage",
    "adversaries": "simulator_adversaries",
}
"""`bench.simulator_<part>` and its result file, in this order."""


def _show(name: str, part: Part) -> None:
    numbers = {key: value for key, value in part.items() if isinstance(value, int | float)}
    print(f"{name}: " + ", ".join(f"{key} {value:,.3g}" for key, value in numbers.items()))


def main() -> None:
    """Measure what is missing, then write the result files."""
    parser = argparse.ArgumentParser(prog="bench.simulator", description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="measure every part again")
    parser.add_argument("--part", choices=PARTS, help="measure this one alone")
    options = parser.parse_args()
    kept = Parts(CACHE / "simulator" / commit()[:12], options.fresh, _show)
    for name, result in PARTS.items():
        if options.part not in {None, name}:
            continue
        found = importlib.import_module(f"bench.simulator_{name}").measure(kept)
        path = write_result(result, COMMAND, found.figures, tables={"tables": found.tables})
        print(f"wrote {path.relative_to(ROOT)}")
        for figure in found.figures:
            goal = "" if figure.goal is None else f" (goal {figure.goal:g})"
            print(f"  {figure.name:50} {figure.value:10.3f} {figure.unit}{goal}")
        gc.collect()
    _quote_coverage()


def _quote_coverage() -> None:
    """Put the figures of coverage that have a goal among the simulator's, as they were measured."""
    path = RESULTS / f"{PARTS['coverage']}.json"
    if path.exists():
        found = [Figure(**one) for one in json.loads(path.read_text())["figures"] if one["goal"]]
        merge_result(PARTS["engine"], f"{COMMAND} ARGS='--part coverage'", found)


if __name__ == "__main__":
    main()
