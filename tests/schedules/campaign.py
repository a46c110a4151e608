"""Schedules played and judged: one, or many in blocks that are kept; a failing one made short.

Source      Zeller and Hildebrandt 2002, "Simplifying and isolating failure-inducing input", ddmin
"""

from __future__ import annotations

import logging
import os
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import structlog

from bench.parts import Parts
from tests.schedules.faults import STRIKES
from tests.schedules.oracle import WatchedIntake
from tests.schedules.planted import Planted
from tests.schedules.schedule import Fault, Schedule, draw_schedule
from tests.schedules.simulation import Simulation
from tests.schedules.verdict import judge

BLOCK: Final = 250
MOST_SEEDS: Final = 400
"""Schedules in which a planted bug is looked for."""
MEMORY: Final = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a schedule; `problems` is empty where everything held."""

    problems: tuple[str, ...]
    released: int
    reports: int


def play(schedule: Schedule) -> Outcome:
    """Play a schedule; what a role raises that it must not raise comes out of here."""
    room = MEMORY if os.access(MEMORY, os.W_OK) else None
    with TemporaryDirectory(prefix="plst-schedule-", dir=room) as folder, _quiet():
        sim = Simulation(schedule, Path(folder), lambda sim, fault: STRIKES[fault.kind](sim, fault))
        with sim.machine.installed(), WatchedIntake(sim.oracle).installed():
            try:
                sim.play()
                sim.settle()
                judge(sim)
            finally:
                sim.close()
    released, reports = len(sim.leader.store.written), len(sim.oracle.on_log)
    return Outcome(tuple(sim.oracle.problems), released, reports)


@contextmanager
def _quiet() -> Iterator[None]:
    """Have nothing logged: a schedule is told by its outcome."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


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
    wanted = _kinds(problems_of(schedule))
    return shrink(schedule, lambda shorter: bool(_kinds(problems_of(shorter)) & wanted))


def _kinds(problems: Iterable[str]) -> frozenset[str]:
    return frozenset(problem.rpartition(": ")[2].translate(_NO_DIGITS) for problem in problems)


_NO_DIGITS: Final = str.maketrans("", "", "0123456789")


def shrink(schedule: Schedule, fails: Callable[[Schedule], bool]) -> Schedule:
    """Drop faults and the liar, and make what is left smaller, as long as it fails."""
    shorter = replace(schedule, faults=_fewest(schedule, fails))
    changed = True
    while changed:
        changed = False
        for simpler in _simpler(shorter):
            if fails(simpler):
                shorter, changed = simpler, True
                break
    return shorter


def _fewest(schedule: Schedule, fails: Callable[[Schedule], bool]) -> tuple[Fault, ...]:
    faults, parts = schedule.faults, 2
    while faults:
        size = -(-len(faults) // parts)
        for at in range(0, len(faults), size):
            fewer = faults[:at] + faults[at + size :]
            if fails(replace(schedule, faults=fewer)):
                faults, parts = fewer, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(faults))
    return faults


def _simpler(schedule: Schedule) -> Iterator[Schedule]:
    if schedule.liar:
        yield replace(schedule, liar=False)
    for place, fault in enumerate(schedule.faults):
        for smaller in _smaller(fault):
            faults = (*schedule.faults[:place], smaller, *schedule.faults[place + 1 :])
            yield replace(schedule, faults=faults)


def _smaller(fault: Fault) -> Iterator[Fault]:
    if fault.turn:
        yield replace(fault, turn=0)
    if fault.value > 1:
        yield replace(fault, value=fault.value // 2)
