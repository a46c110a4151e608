"""`make bench-gpu-time`: what GPU time and launch counts cost, and how right they are, off a GPU.

Each part is kept in bench/.cache under the commit it measured; ARGS="--part library" runs one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bench import gpu_time_calls, gpu_time_counts, gpu_time_coverage, gpu_time_library
from bench.parts import Part, Parts
from bench.record import CACHE, Figure, commit, merge_result, write_result

COMMAND: Final = "make bench-gpu-time"
PARTS: Final[Mapping[str, tuple[Callable[[], Part], Callable[[Part], Sequence[Figure]]]]] = {
    "calls": (gpu_time_calls.measure, gpu_time_calls.figures),
    "counts": (gpu_time_counts.measure, gpu_time_counts.figures),
    "coverage": (gpu_time_coverage.measure, gpu_time_coverage.figures),
    "library": (gpu_time_library.measure, gpu_time_library.figures),
}
"""How each is measured, and what figures come of it."""


def main() -> int:
    """Measure what is missing, then write bench/results/gpu_time.json."""
    parser = argparse.ArgumentParser(prog="bench.gpu_time", description=__doc__)
    parser.add_argument("--fresh", action="store_true", help="measure every part again")
    parser.add_argument("--part", choices=list(PARTS), help="this one alone; others stay")
    options = parser.parse_args()
    kept = Parts(CACHE / "gpu_time" / commit()[:12], options.fresh)
    found: list[Figure] = []
    for name in (options.part,) if options.part else PARTS:
        measure, figures = PARTS[name]
        found += figures(kept.get(name, measure))
    for figure in found:
        goal = "" if figure.goal is None else f" (goal {figure.goal:g})"
        print(f"  {figure.name:48} {figure.value:12.3f} {figure.unit}{goal}")
    write = merge_result if options.part else write_result
    command = f'{COMMAND} ARGS="--part {options.part}"' if options.part else COMMAND
    print(f"wrote {write('gpu_time', command, found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
