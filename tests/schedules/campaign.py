"""Many schedules: played in blocks that are kept as they end, so that a run cut off goes on."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

from bench.parts import Parts
from tests.schedules.planted import Planted
from tests.schedules.play import play
from tests.schedules.schedule import Schedule, draw_schedule
from tests.schedules.shrink import shrink

BLOCK: Final = 250
MOST_SEEDS: Final = 400
"""Schedules in which a planted bug is looked for."""


@dataclass(frozen=True, slots=True)
class Played:
    """What a number of schedules came to.

    failed   seeds of those in which something did not hold
    cpu_s    of this process alone
    """

    schedules: int
    failed: tuple[int, ...]
    windows_released: int
    cpu_s: float


def problems_of(schedule: Schedule) -> tuple[str, ...]:
    """What does not hold of a schedule; a role that raises is one of them."""
    try:
        return play(schedule).problems
    except Exception as error:  # noqa: BLE001 - whatever a role raises is a finding
        last = traceback.extract_tb(error.__traceback__)[-1]
        return (f"{type(error).__name__} in {last.name}: {error}",)


def play_seeds(seeds: Iterable[int]) -> Played:
    failed, released, count = [], 0, 0
    begun_s = time.process_time()
    for seed in seeds:
        count += 1
        try:
            outcome = play(draw_schedule(seed))
        except Exception:  # noqa: BLE001 - told by its seed
            failed.append(seed)
            continue
        released += outcome.released
        if outcome.problems:
            failed.append(seed)
    return Played(count, tuple(failed), released, time.process_time() - begun_s)


def play_blocks(kept: Parts, first: int, count: int) -> Iterator[tuple[int, Played]]:
    """Play schedules from a seed on; give each block as it ends, or as it was kept."""
    for begin in range(first, first + count, BLOCK):
        seeds = range(begin, min(begin + BLOCK, first + count))
        found = kept.get(f"schedules-{seeds.start}-{seeds.stop}", partial(_block, seeds))
        yield begin, Played(**{**found, "failed": tuple(found["failed"])})


def _block(seeds: range) -> dict[str, Any]:
    return asdict(play_seeds(seeds))


def find_bug(bug: Planted, seeds: Iterable[int]) -> int | None:
    """The first of these schedules that shows a planted bug; None where none does."""
    with bug.planted():
        return next((seed for seed in seeds if problems_of(draw_schedule(seed))), None)


def shortest(schedule: Schedule) -> Schedule:
    """The shortest schedule that fails in the same way as this one."""
    wanted = _kinds(problems_of(schedule))
    return shrink(schedule, lambda shorter: bool(_kinds(problems_of(shorter)) & wanted))


def _kinds(problems: Iterable[str]) -> frozenset[str]:
    return frozenset(problem.rpartition(": ")[2].translate(_NO_DIGITS) for problem in problems)


_NO_DIGITS: Final = str.maketrans("", "", "0123456789")
