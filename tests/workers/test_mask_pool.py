"""A Helper with workers answers what a Helper without them does, byte for byte, and once."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from aggregator.helper.helper_state import HelperState
from aggregator.helper.host_masks import MasksUnavailable
from aggregator.protocol.party_events import RosterSeen, TaskSeen
from aggregator.witness.port import RollbackSeen
from aggregator.workers.mask_pool import MaskPool
from aggregator.workers.mask_worker import MaskJob
from tests.privacy.test_helper_batch_rules import Bench
from tests.protocol_kit import T0, WINDOW_S, World, build_world, make_epoch, open_epochs
from tests.witness.witness_kit import Stand
from transport.files.keyfiles import HpkeKeyFile, write_hpke_key, write_signing_key

DAY_S = 86_400


class ThreadForkServer:
    """Begins workers as threads, whose pipes a test may cut."""

    def __init__(self) -> None:
        self.pipes: list[Connection] = []

    def begin(self, work: Callable[..., None], arguments: Sequence[Any]) -> Connection:
        ours, theirs = Pipe()
        Thread(target=work, args=(theirs, *arguments), daemon=True).start()
        self.pipes.append(ours)
        return ours

    def cut(self) -> None:
        """Both ends find the pipe ended, as when a process falls."""
        for pipe in self.pipes:
            if not pipe.closed:
                with socket.socket(fileno=os.dup(pipe.fileno())) as line, suppress(OSError):
                    line.shutdown(socket.SHUT_RDWR)
        self.pipes.clear()


@pytest.fixture
def world() -> World:
    world = build_world(12)
    open_epochs(world)
    return world


@pytest.fixture
def key_dir(world: World, tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    write_signing_key(folder / "identity.key", world.helper_key)
    start = T0 // DAY_S * DAY_S
    key = HpkeKeyFile(world.helper_hpke, start, start + DAY_S + 3900)
    write_hpke_key(folder / "2023-11-14.hpke", key)
    return folder


@pytest.fixture
def fork_server() -> Iterator[ThreadForkServer]:
    made = ThreadForkServer()
    yield made
    made.cut()


def pooled(
    world: World, folder: Path, key_dir: Path, fork_server: ThreadForkServer, **options: object
) -> Bench:
    """A Helper of three workers."""

    def make(world: World, state: HelperState) -> MaskPool:
        return MaskPool(fork_server, 3, MaskJob(world.parties, key_dir), state)  # type: ignore[arg-type]

    folder.mkdir(exist_ok=True)
    bench = Bench(world, folder, mask_maker=make, **options)
    bench.helper.handle(TaskSeen(world.task_bytes, T0))
    bench.helper.handle(RosterSeen(world.roster_bytes))
    return bench


def epochs_of(world: World) -> list[bytes]:
    return [host.epoch.encode() for host in world.hosts if host.epoch is not None]


def test_answers_are_those_of_one_process(
    world: World, tmp_path: Path, key_dir: Path, fork_server: ThreadForkServer
) -> None:
    (tmp_path / "one").mkdir()
    one, many = (
        Bench(world, tmp_path / "one"),
        pooled(world, tmp_path / "many", key_dir, fork_server),
    )
    batch = one.batch(world.hosts, spoil_tag=3, spoil_check=5)
    asked = [bench.ask(batch, complete=False) for bench in (one, many)]
    assert sorted(asked[0].need_epochs) == sorted(asked[1].need_epochs)
    twin, _ = make_epoch(world, world.hosts[7], salt=1)
    for bench in (one, many):
        bench.runner.submit_epochs([*epochs_of(world), twin.encode(), b"no epoch"])
    answers = [bench.ask(batch) for bench in (one, many)]
    assert answers[0] == answers[1]
    assert answers[0].cleared == {"tag": 1, "check_words": 1, "epoch_twin": 1}
    assert len(many.helper.masks) == len(one.helper.masks) == 12
    assert one.helper.refused == many.helper.refused
    assert list(one.state.epochs()) == list(many.state.epochs())
    assert one.state.counters() == many.state.counters()


def test_worker_that_falls_clears_no_host_and_answers_nothing(
    world: World, tmp_path: Path, key_dir: Path, fork_server: ThreadForkServer
) -> None:
    """The Leader has given all epochs it has; a worker without them may not judge their hosts."""
    bench = pooled(world, tmp_path / "many", key_dir, fork_server)
    bench.runner.submit_epochs(epochs_of(world))
    batch = bench.batch(world.hosts)
    fork_server.cut()
    with pytest.raises(MasksUnavailable):
        bench.ask(batch)
    assert bench.state.counts()["answers"] == 0
    again = bench.ask(batch, complete=False)
    assert len(again.need_epochs) == 12
    bench.runner.submit_epochs(epochs_of(world))
    assert bench.share(batch, bench.ask(batch)).n_accepted == 12


def test_answer_that_was_committed_before_workers_fell_is_the_same(
    world: World, tmp_path: Path, key_dir: Path, fork_server: ThreadForkServer
) -> None:
    def crash(step: str) -> None:
        if step == "between commit and sum":
            raise SystemExit

    broken = pooled(world, tmp_path / "many", key_dir, fork_server, checkpoint=crash)
    broken.runner.submit_epochs(epochs_of(world))
    batch = broken.batch(world.hosts, spoil_tag=3)
    with pytest.raises(SystemExit):
        broken.ask(batch)
    broken.state.close()
    (tmp_path / "one").mkdir()
    one = Bench(world, tmp_path / "one")
    one.runner.submit_epochs(epochs_of(world))
    again = pooled(world, tmp_path / "many", key_dir, fork_server)
    assert len(again.ask(batch, complete=False).need_epochs) == 11
    again.runner.submit_epochs(epochs_of(world))
    assert again.ask(batch).share == one.ask(batch).share
    other = again.batch(world.hosts[:-1])
    assert again.ask(other).refusal == "answered_otherwise"


def test_of_two_live_helpers_and_a_restored_one_a_single_one_answers(
    world: World, tmp_path: Path, key_dir: Path, fork_server: ThreadForkServer, stand: Stand
) -> None:
    """The same witnesses hold Helpers with workers apart: a process, and PostgreSQL."""
    live = tmp_path / "live"
    pooled(world, live, key_dir, fork_server, witness=stand.open()).state.close()
    for copy in ("second", "backup"):
        shutil.copytree(live, tmp_path / copy)
    one = pooled(world, live, key_dir, fork_server, witness=stand.open())
    second = pooled(world, tmp_path / "second", key_dir, fork_server, witness=stand.open())
    assert second.ask(b"").refusal == "length"  # it has found itself level with the witness
    for bench in (one, second):
        bench.runner.submit_epochs(epochs_of(world))
    batch = one.batch(world.hosts)
    assert one.ask(batch).share
    with pytest.raises(RollbackSeen, match="another copy"):
        second.ask(second.batch(world.hosts[:-1]))
    restored = pooled(world, tmp_path / "backup", key_dir, fork_server, witness=stand.open())
    with pytest.raises(RollbackSeen, match="--after-restore"):
        restored.ask(restored.batch(world.hosts[:-1]))
    one.clock.now_s = T0 + 2 * WINDOW_S + 6
    assert one.ask(one.batch(world.hosts, window=T0 + WINDOW_S)).share
