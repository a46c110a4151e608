"""A released sum minus the true sum is exactly the noise that was drawn."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from privacy.noise_seeded import SeededSampler
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Fleet,
    Host,
    build_world,
    honest_reports,
    open_epochs,
    seal_report,
    seeded_bytes,
    true_sum,
    vector_of,
)


def test_release_equals_the_sum_of_the_accepted_hosts(tmp_path: Path) -> None:
    world = build_world(12)
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world))
    fleet.close_window()
    (release,) = fleet.store.written
    assert release.n == 12
    assert np.array_equal(release.vector, true_sum(world, world.hosts))
    assert release.capacity is not None
    assert release.capacity.gpus == 96
