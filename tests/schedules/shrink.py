"""Make a failing schedule as short as it gets while it still fails.

Source      Zeller and Hildebrandt 2002, "Simplifying and isolating failure-inducing input", ddmin
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.schedules.schedule import Fault, Schedule

Fails = Callable[[Schedule], bool]


def shrink(schedule: Schedule, fails: Fails) -> Schedule:
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


def _fewest(schedule: Schedule, fails: Fails) -> tuple[Fault, ...]:
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
