"""The part `schedules` of `make bench-scale`: schedules of faults, and planted bugs they find."""

from __future__ import annotations

from functools import partial
from typing import Final

from bench.parts import Measured, Part, Parts
from bench.record import Figure
from tests.schedules.campaign import MOST_SEEDS, find_bug, play_blocks
from tests.schedules.planted import PLANTED, Planted

SCHEDULES: Final = 10_000
BUGS_GOAL: Final = 10


def measure(kept: Parts) -> Measured:
    """Play the schedules in blocks, then look for each planted bug."""
    blocks = [block for _, block in play_blocks(kept, 0, SCHEDULES)]
    bugs = [kept.get(f"planted-{bug.name}", partial(_look, bug)) for bug in PLANTED]
    played = sum(block.schedules for block in blocks)
    cpu_s = sum(block.cpu_s for block in blocks)
    found = [bug["seed"] for bug in bugs if bug["seed"] is not None]
    return Measured(
        [
            Figure("schedules_run", played, "schedules", SCHEDULES),
            Figure("schedules_failed", sum(len(b.failed) for b in blocks), "schedules", 0),
            Figure(
                "schedules_windows_released", sum(b.windows_released for b in blocks), "windows"
            ),
            Figure("schedules_per_core_second", played / cpu_s, "schedules/s of one core"),
            Figure("planted_bugs", len(bugs), "bugs"),
            Figure("planted_bugs_found", len(found), "bugs", BUGS_GOAL),
            Figure("planted_bugs_schedules", max(found, default=0) + 1, "schedules for the last"),
        ]
    )


def _look(bug: Planted) -> Part:
    return {"seed": find_bug(bug, range(MOST_SEEDS))}
