"""The identities, tasks and roster that every schedule shares; the same in every run."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregator.protocol.directory import PinnedParties
from edge_agent.protocol.task_check import Bounds, ParticipantRules
from tests.agent_world import T0, Party, World, make_section
from tests.protocol_kit import hpke_pair, signing_key
from wire.envelope import Kind, wrap
from wire.epoch import KeyAnnouncement
from wire.task import Task
from wire.topics import KEYS, ROSTERS, TASKS

HOSTS: Final = 8
LIAR: Final = HOSTS - 1
"""The host that an adversary may hold; else it is never heard."""
N_MIN: Final = 5
WINDOW_S: Final = 60
SERIES: Final = "minute"
COHORT: Final = 7
WEIGHT: Final = 600_000
QUANTUM: Final = 1_000
CELLS: Final = 4
WINDOWS: Final = 5
"""Of the task: faults strike in the first three."""
LAST_WINDOW: Final = T0 + (WINDOWS - 1) * WINDOW_S


@cache
def world() -> World:
    leader, helper = (Party(signing_key(one), hpke_pair(one)) for one in ("leader", "helper"))
    return World(HOSTS, leader, helper, lambda n: signing_key("schedules", n), "schedules")


@cache
def signed_task(version: int) -> bytes:
    return world().sign_task(task_of(version))


@cache
def task_of(version: int) -> Task:
    """Small, so that noise and masks cost little; noise as for any other task."""
    section = make_section(WEIGHT, length=CELLS, bound=8 * QUANTUM, q=QUANTUM)
    return world().task(
        SERIES,
        window_s=WINDOW_S,
        version=version,
        last=LAST_WINDOW,
        sections=(section,),
        n_max=HOSTS,
        n_min=N_MIN,
        t=1,
    )


@cache
def signed_roster() -> bytes:
    return world().roster({SERIES: WEIGHT}, cohort=COHORT, crowd=HOSTS)


@cache
def announced_keys() -> tuple[KeyAnnouncement, ...]:
    return world().keys(T0 - 3600)


@cache
def control_records(version: int) -> tuple[tuple[str, bytes], ...]:
    """What agents read first: (topic, value)."""
    keys = [(KEYS, wrap(Kind.KEY_ANNOUNCEMENT, key.encode())) for key in announced_keys()]
    roster = (ROSTERS, wrap(Kind.ROSTER, signed_roster()))
    return (roster, *keys, (TASKS, wrap(Kind.TASK, signed_task(version))))


def parties() -> PinnedParties:
    return PinnedParties(world().leader.pk, world().helper.pk)


def rules() -> ParticipantRules:
    """What an agent of this fleet accepts; PLD is checked by tests of its own."""
    return ParticipantRules(world().pins, Bounds(n_min_at_least=N_MIN), "demo")


def true_row(host: int, window: int) -> NDArray[np.int64]:
    """What a host measures in a window: int64[CELLS], base units, multiples of the quantum.

    Rounding leaves multiples of the quantum alone, so the released sum can be told exactly.
    """
    digest = hashlib.sha256(f"row {host} {window}".encode()).digest()
    return np.frombuffer(digest[:CELLS], np.uint8).astype(np.int64) % 3 * QUANTUM
