"""Play one schedule from beginning to end, and ask the oracle."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import structlog

from tests.schedules.faults import STRIKES
from tests.schedules.oracle import WatchedIntake
from tests.schedules.schedule import Schedule
from tests.schedules.simulation import Simulation
from tests.schedules.verdict import judge

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
