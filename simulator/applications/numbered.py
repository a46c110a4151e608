"""Any number of equal applications, told apart by number: for curves against their count."""

from __future__ import annotations

from itertools import product
from typing import Final

from simulator.workloads import load_workloads
from wire.catalogue import Catalogue

from .application_table import Application
from .variant import Variant, derive

MOST: Final = 250
_SIZES: Final = tuple(product((1.0, 4.0, 16.0, 0.25, 2.0), (1.0, 2.0, 0.5), (False, True)))


def numbered_applications(catalogue: Catalogue, count: int) -> tuple[Application, ...]:
    """Make so many applications, each under its own place of the catalogue's table.

    The first ten are the recordings' numbers unchanged, the rest variants of them; all of them are
    filed under a class that is not theirs, so all say that they are variants. Place 0, "unknown",
    stays free.

    count   1 .. 250
    Raises  ValueError
    """
    places = catalogue.section("applications_seen").cells
    if not 1 <= count <= min(MOST, len(places) - 1):
        raise ValueError(f"expected 1 to {MOST} applications, got {count}")
    recordings = load_workloads()
    made = []
    for number in range(count):
        recording = recordings[number % len(recordings)]
        batch, sequence, training = _SIZES[number // len(recordings) % len(_SIZES)]
        variant = Variant(batch=batch, sequence=sequence, training=training)
        name = f"application_{number + 1:03}"
        workload = derive(recording, variant, name, places[number + 1])
        made.append(Application(name, name, workload, recording.name, variant, "one of a number"))
    return tuple(made)
