"""Noise that is none never leaves: saturated, absent or too large for its type."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_agent.protocol.protocol_events import Withheld
from edge_agent.protocol.seal_report import noise_fault, zero_bits
from privacy.calibrate import MAX_SIGMA_1024, check_sigma_range, sigma_local_1024
from privacy.errors import ParameterError
from privacy.noise import NoiseSampler, OpenDpSampler
from privacy.noise_table import LiveSampler
from tests.agent_world import T0, World, close_window, make_section, reports, started

SAMPLERS: list[Callable[[], NoiseSampler]] = [OpenDpSampler, lambda: LiveSampler(os.urandom)]


class Constant:
    """A faulty sampler of the live kind: it draws nothing."""

    seeded = False

    def __init__(self, value: int) -> None:
        self._value = value

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.where(sigma_1024 > 0, self._value, 0) * np.ones((hosts, 1), dtype=np.int64)


@pytest.mark.parametrize("make", SAMPLERS)
def test_sampler_does_not_saturate_at_32_bits(make: Callable[[], NoiseSampler]) -> None:
    # Nine tenths of such draws were the ends of int32, and the value under them showed.
    sigma = np.full(200, 18_700_000_000 * 1024, dtype=np.int64)
    draws = make().sample(1, sigma)[0]
    assert np.unique(draws).size == draws.size
    assert 5e9 < np.abs(draws).mean() < 5e10


@pytest.mark.parametrize("make", SAMPLERS)
def test_sigma_beyond_the_type_is_refused_by_calibration_and_sampler(
    make: Callable[[], NoiseSampler],
) -> None:
    check_sigma_range(MAX_SIGMA_1024)
    with pytest.raises(ParameterError, match="sigma"):
        check_sigma_range(MAX_SIGMA_1024 + 1)
    with pytest.raises(ParameterError, match="sigma"):
        sigma_local_1024(1 << 64, 10_081, 1, 500_000_000, 1)
    with pytest.raises(ParameterError, match="sigma"):
        make().sample(1, np.array([MAX_SIGMA_1024 + 1], dtype=np.int64))


@pytest.mark.parametrize("value", [0, -(1 << 31), (1 << 31) - 1, (1 << 63) - 1, -(1 << 63)])
def test_participant_withholds_a_window_whose_noise_is_none(value: int) -> None:
    world = World(1)
    task = world.task(domain="fleet", sections=(make_section(600_000, length=32),))
    rules = world.rules(domain="live")
    taking_part = world.participant(sampler=Constant(value), rules=rules)
    runtime, (tid,) = started(world, [task], participant=taking_part)
    close_window(runtime, world, task, tid, T0)
    assert reports(runtime.published) == []
    assert [refusal.reason for refusal in runtime.refused] == [Withheld.NOISE_FAULT]


def test_few_coordinates_may_be_zero_by_chance() -> None:
    section = dataclasses.replace(make_section(1, length=2), sigma_1024=2048)
    task = dataclasses.replace(World(1).task(), sections=(section,))
    nothing = np.zeros((1, task.d), dtype=np.int64)
    assert zero_bits(task) == 4
    assert noise_fault(task, nothing, 1, seeded=False) is None
    many = dataclasses.replace(task, sections=(dataclasses.replace(section, length=32),))
    nothing = np.zeros((1, many.d), dtype=np.int64)
    assert noise_fault(many, nothing, 1, seeded=False) == "a host without any noise"
    assert noise_fault(many, nothing, 1, seeded=True) is None
