"""The channel across a Unix socket: the same answers, bounded, and closed to others."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregator.party.channel import ChannelHelper, prepare_socket_folder, serve
from aggregator.party.channel_address import ChannelAddress
from aggregator.protocol.interfaces import HelperUnavailable
from tests.protocol_kit import (
    Clock,
    Failures,
    Fleet,
    World,
    build_world,
    honest_reports,
    open_epochs,
    start_helper,
    true_sum,
)


class Served:
    """A Helper behind a socket."""

    def __init__(self, world: World, folder: Path) -> None:
        self.clock = Clock()
        self.address = ChannelAddress(socket=folder / "run" / "h.sock", call_timeout_s=10)
        assert self.address.socket is not None
        prepare_socket_folder(self.address.socket, None, None)
        _, self.state, runner = start_helper(world, folder, self.clock)
        self.failures = Failures()
        self.server = serve(runner, self.address, self.failures, threading.Lock())


@pytest.fixture
def world() -> World:
    return build_world(9)


@pytest.fixture
def served(world: World, tmp_path: Path) -> Iterator[Served]:
    made = Served(world, tmp_path)
    yield made
    made.server.stop(0).wait()
    made.state.close()


def test_window_is_released_across_the_channel(
    world: World, served: Served, tmp_path: Path
) -> None:
    channel = ChannelHelper(served.address)
    fleet = Fleet(world, tmp_path / "leader", helper=channel)
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world))
    served.clock.now_s = fleet.clock.now_s + 60
    fleet.close_window()
    assert np.array_equal(fleet.store.written[0].vector, true_sum(world, world.hosts))
    status = channel.status()
    assert (status.batches_answered, status.roster_version) == (1, 1)
    assert status.helper_pk == world.helper_key.public_bytes
    channel.close()


def test_helper_that_is_away_is_unavailable_and_nothing_else(tmp_path: Path) -> None:
    channel = ChannelHelper(ChannelAddress(socket=tmp_path / "none.sock", call_timeout_s=1))
    with pytest.raises(HelperUnavailable):
        channel.status()
    channel.close()


def test_message_above_the_bound_is_refused(served: Served) -> None:
    channel = ChannelHelper(replace(served.address, max_message_bytes=1000))
    with pytest.raises(HelperUnavailable):
        channel.submit_batch(bytes(2000), epochs_complete=False)
    channel.close()
    assert served.failures.seen == []


def test_garbage_is_refused_with_its_reason_and_the_helper_lives(served: Served) -> None:
    channel = ChannelHelper(served.address)
    assert channel.submit_batch(b"\1" * 300, epochs_complete=False).refusal == "version"
    assert channel.submit_batch(b"\1" * 3, epochs_complete=False).refusal == "length"
    channel.submit_epochs([b"\1" * 50])
    assert channel.submit_release(b"\2" * 304, b"").refusal
    assert channel.status().refused == {"version": 2, "length": 2}
    channel.close()
    assert served.failures.seen == []


def test_socket_folder_is_closed_to_others(served: Served) -> None:
    assert served.address.socket is not None
    assert stat.S_IMODE(served.address.socket.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(served.address.socket.stat().st_mode) & 0o007 == 0
