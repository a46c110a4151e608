"""How long every parser of a stranger's bytes was fuzzed, and what broke it.

Nothing is run here: `make fuzz` writes down what it spent, over all its runs.
"""

from __future__ import annotations

from typing import Final

from bench.parts import Measured, Parts
from bench.record import CACHE, Figure
from tests.fuzz.fuzzing import Fuzzing

GOAL_HOURS: Final = 8.0
"""An hour for each parser."""


def measure(kept: Parts) -> Measured:  # noqa: ARG001 (what was spent is kept elsewhere)
    """Sum up the hours of CPU, and the least of one parser; crashes found, and those not mended."""
    spent = Fuzzing(CACHE / "fuzz").spent.values()
    hours = [target.cpu_s / 3600 for target in spent]
    return Measured([
        Figure("fuzz_hours", sum(hours), "h", GOAL_HOURS),
        Figure("fuzz_hours_least_of_a_parser", min(hours), "h", 1.0),
        Figure("fuzz_inputs", sum(target.executions for target in spent), ""),
        Figure("fuzz_crashes", sum(target.open for target in spent), "", 0.0),
        Figure("fuzz_crashes_mended", sum(target.crashes - target.open for target in spent), ""),
    ])  # fmt: skip
