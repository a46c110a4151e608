"""A schedule as data: what goes wrong when, drawn from a seed; orders of turns follow from it."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.schedules.signed_world import WINDOW_S

SLOT_S: Final = 15
SLOTS: Final = 3 * WINDOW_S // SLOT_S
"""In which faults strike; then everything is put right."""
AGENTS: Final = 4
MOST_FAULTS: Final = 9


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong.

    slot, turn   before which turn of which slot it strikes
    kind         a name of KINDS
    who          which of several, where there are several
    value        how much: slots that it lasts, steps until a crash, seconds of a clock
    """

    slot: int
    turn: int
    kind: str
    who: int = 0
    value: int = 0


@dataclass(frozen=True, slots=True)
class Schedule:
    """One schedule: all that a replay needs.

    liar      a host sends reports that the Helper does not accept
    """

    seed: int
    liar: bool = False
    faults: tuple[Fault, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Schedule:
        """Read what `to_json` wrote."""
        found: Mapping[str, Any] = json.loads(text)
        faults = tuple(Fault(**fault) for fault in found["faults"])
        return replace(Schedule(**{**found, "faults": ()}), faults=faults)

    def __str__(self) -> str:
        head = f"seed {self.seed}{', a liar' if self.liar else ''}"
        lines = [
            f"  slot {fault.slot}.{fault.turn}: {fault.kind} who={fault.who} value={fault.value}"
            for fault in sorted(self.faults, key=lambda fault: (fault.slot, fault.turn))
        ]
        return "\n".join([head, *lines])


Draw = Callable[[random.Random], int]


def _up_to(most: int, least: int = 1) -> Draw:
    return lambda rng: rng.randint(least, most)


def _clock(rng: random.Random) -> int:
    """Seconds; no further ahead than the last two windows lie behind the faults."""
    return rng.choice((-120, -45, -20, 20, 45, 100))


_SLOTS_LONG: Final = _up_to(6)
_SLOTS_DOWN: Final = _up_to(5, 0)
_STEPS: Final = _up_to(60, 0)
_FEW: Final = _up_to(3)
_ANY: Final = _up_to(999, 0)
_UNUSED: Final = _SLOTS_DOWN

KINDS: Final[Mapping[str, tuple[int, Draw]]] = {
    # agents
    "agent killed": (3, _SLOTS_LONG),
    "agent falls at a step": (5, _STEPS),
    "agent disk full": (3, _SLOTS_LONG),
    "agent clock": (3, _clock),
    "agent cut off": (3, _SLOTS_LONG),
    "agent flush unacknowledged": (4, _FEW),
    "agent ledger backed up": (2, _UNUSED),
    "agent ledger restored": (2, _UNUSED),
    # the log
    "log away": (3, _SLOTS_LONG),
    "log delivers again": (4, _UNUSED),
    "log commits lost": (2, _UNUSED),
    "log doubles a record": (4, _UNUSED),
    "log moves a record": (3, _UNUSED),
    "log forges a record": (6, _ANY),
    "log holds a partition": (3, _SLOTS_LONG),
    "log backwards": (2, _SLOTS_LONG),
    # the Leader
    "leader killed": (3, _SLOTS_DOWN),
    "leader falls at a step": (10, _STEPS),
    "leader disk full": (4, _SLOTS_LONG),
    "leader clock": (3, _clock),
    "leader cut off": (2, _SLOTS_LONG),
    "leader twice": (1, _UNUSED),
    "leader cloned": (1, _SLOTS_LONG),
    "leader backed up": (1, _UNUSED),
    "leader restored": (1, _UNUSED),
    # the channel
    "channel cut": (3, _SLOTS_LONG),
    "channel loses answers": (5, _FEW),
    "channel slow": (4, _up_to(5)),
    # the Helper
    "helper killed": (3, _SLOTS_DOWN),
    "helper falls at a step": (10, _STEPS),
    "helper disk full": (4, _SLOTS_LONG),
    "helper clock": (3, _clock),
    "helper twice": (2, _UNUSED),
    "helper cloned": (1, _SLOTS_LONG),
    "helper backed up": (2, _UNUSED),
    "helper state restored": (1, _UNUSED),
    "helper restored": (2, _UNUSED),
    "witness away": (2, _SLOTS_LONG),
    # a rolling change
    "agent learns version 2": (2, _UNUSED),
    "leader learns version 2": (2, _UNUSED),
    "helper learns version 2": (2, _UNUSED),
}
"""Kind -> how often it is drawn, and its value."""


def draw_schedule(seed: int) -> Schedule:
    """Draw a schedule; the same seed gives the same one."""
    rng = random.Random(f"schedule {seed}")
    weights = [weight for weight, _draw_value in KINDS.values()]
    faults = [
        _draw(rng, kind)
        for kind in rng.choices(list(KINDS), weights, k=rng.randint(1, MOST_FAULTS))
    ]
    for fault in list(faults):  # a copy that is put back was made earlier
        before = _MADE_BY.get(fault.kind)
        if before is not None and rng.random() < 0.9:
            slot = rng.randint(0, fault.slot)
            faults.append(replace(fault, kind=before, slot=slot, turn=0))
    return Schedule(seed, rng.random() < 0.4, tuple(sorted(faults, key=_place)))


_MADE_BY: Final = {
    "agent ledger restored": "agent ledger backed up",
    "leader restored": "leader backed up",
    "helper restored": "helper backed up",
    "helper state restored": "helper backed up",
}


def _draw(rng: random.Random, kind: str) -> Fault:
    slot, turn = rng.randrange(SLOTS), rng.randrange(8)
    return Fault(slot, turn, kind, rng.randrange(12), KINDS[kind][1](rng))


def _place(fault: Fault) -> tuple[int, int]:
    return fault.slot, fault.turn


def read_kept(folder: Path) -> dict[str, Schedule]:
    found = sorted(folder.glob("*.json"))
    return {path.stem: Schedule.from_json(path.read_text()) for path in found}
