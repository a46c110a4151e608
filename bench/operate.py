"""`make bench-operate`: what running a fleet takes from people, from the parts that measure it.

A part is a module of bench with `measure(kept) -> Measured`; all parts share one result file, and
a part that was not measured keeps the value of its last run. What a part hands to `kept.get` is
kept in bench/.cache as it ends, under the commit it measured. `--part NAME` measures one alone.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Final

from bench.parts import Parts
from bench.record import CACHE, commit, merge_result

COMMAND: Final = "make bench-operate"
RESULT: Final = "operate"
PARTS: Final = {
    "signing": "bench.operate_signing",
    "fuzz": "bench.operate_fuzz",
    "first_fleet": "bench.operate_first_fleet",
    "packages": "bench.operate_packages",
    "pages": "bench.operate_pages",
}
"""Part -> its module, in this order."""


def main() -> None:
    """Measure what is missing, then write the figures of each part."""
    parser = argparse.ArgumentParser(prog="bench.operate", description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="measure every part again")
    parser.add_argument("--part", choices=PARTS, help="measure this one alone")
    parser.add_argument("--try", dest="trial", action="store_true", help="write no result")
    options = parser.parse_args()
    kept = Parts(CACHE / RESULT / commit()[:12], options.fresh)
    for name, module in PARTS.items():
        if options.part not in {None, name}:
            continue
        found = importlib.import_module(module).measure(kept)
        if not options.trial:
            merge_result(RESULT, f"{COMMAND} ARGS='--part {name}'", found.figures)
        for figure in found.figures:
            goal = "" if figure.goal is None else f" (goal {figure.goal:g})"
            print(f"  {figure.name:52} {figure.value:12.3f} {figure.unit}{goal}")


if __name__ == "__main__":
    main()
