"""Copies of a Helper, its state and its fence put back together: none gives a second answer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from aggregator.protocol.interfaces import BatchReply
from aggregator.witness.chain import RollbackSeen, WitnessedChain, WitnessUnavailable
from tests.aggregator.witness.witness_kit import MemoryStand, ProcessStand, Stand, extend, patiently
from tests.privacy.test_helper_batch_rules import Bench
from tests.protocol_kit import T0, WINDOW_S, Host, World, build_world, open_epochs
from wire.batch import SignedBatch, SignedShare


class Crash(BaseException):
    """The process ends here."""


@pytest.fixture
def world() -> World:
    world = build_world(12)
    open_epochs(world)
    return world


def ready(world: World, folder: Path, stand: Stand, **options: object) -> Bench:
    folder.mkdir(exist_ok=True)
    bench = Bench(world, folder, witness=stand.open(), **options)
    give_epochs(bench, world.hosts)
    return bench


def give_epochs(bench: Bench, hosts: list[Host]) -> None:
    bench.runner.submit_epochs([h.epoch.encode() for h in hosts if h.epoch is not None])


def copy_of(folder: Path, name: str) -> Path:
    """A snapshot of the machine: database and fence file together."""
    made = folder.with_name(name)
    shutil.copytree(folder, made)
    return made


def test_helper_restored_with_its_fence_answers_nothing(
    world: World, tmp_path: Path, stand: Stand
) -> None:
    bench = ready(world, tmp_path / "live", stand)
    bench.state.close()
    backup = copy_of(tmp_path / "live", "backup")
    bench = ready(world, tmp_path / "live", stand)
    assert bench.ask(bench.batch(world.hosts)).share
    bench.state.close()

    restored = ready(world, backup, stand)
    for batch in (restored.batch(world.hosts[:-1]), restored.batch(world.hosts)):
        with pytest.raises(RollbackSeen, match="--after-restore"):
            restored.ask(batch)
    assert restored.state.counts()["answers"] == 0
    restored.state.close()
    # The one that went on is as sound as before.
    again = ready(world, tmp_path / "live", stand)
    again.clock.now_s = T0 + 2 * WINDOW_S + 6
    assert again.ask(again.batch(world.hosts, window=T0 + WINDOW_S)).share


def test_of_two_copies_that_run_at_once_the_second_answers_nothing(
    world: World, tmp_path: Path, stand: Stand
) -> None:
    ready(world, tmp_path / "one", stand).state.close()
    other = ready(world, copy_of(tmp_path / "one", "two"), stand)
    assert other.ask(b"").refusal == "length"  # it has found itself level with the witness
    one = ready(world, tmp_path / "one", stand)
    early = one.batch(world.hosts, window=T0)
    assert one.ask(early).share
    with pytest.raises(RollbackSeen, match="another copy"):
        other.ask(other.batch(world.hosts[:-1]))
    with pytest.raises(RollbackSeen):
        other.ask(early)


def test_same_batch_with_another_host_left_out_is_another_answer(
    world: World, tmp_path: Path
) -> None:
    """The Leader withholds a host's epoch from the copy: the batch is the same, the sum is not."""
    stand = MemoryStand()
    ready(world, tmp_path / "one", stand).state.close()
    copy = copy_of(tmp_path / "one", "two")
    one = ready(world, tmp_path / "one", stand)
    other = Bench(world, copy, witness=stand.open())
    give_epochs(other, world.hosts[:-1])
    assert other.ask(b"").refusal == "length"
    batch = one.batch(world.hosts)
    assert accepted(batch, one.ask(batch)) == 12
    with pytest.raises(RollbackSeen):
        other.ask(batch)


def accepted(batch: bytes, reply: BatchReply) -> int:
    n = SignedBatch.decode(batch).batch.n
    return SignedShare.decode(reply.share, n, 6).share.n_accepted


def test_batches_wait_for_a_witness_that_is_away(
    world: World, tmp_path: Path, stand: Stand
) -> None:
    bench = ready(world, tmp_path / "live", stand)
    batch = bench.batch(world.hosts)
    stand.stop()
    with pytest.raises(WitnessUnavailable):
        bench.ask(batch)
    assert bench.state.counts()["answers"] == 0
    stand.start()
    share = patiently(lambda: bench.ask(batch)).share
    assert share
    # Away again: nothing is consumed, and what was answered before has the same bytes.
    stand.stop()
    assert bench.ask(batch).share == share
    bench.clock.now_s = T0 + 2 * WINDOW_S + 6
    later = bench.batch(world.hosts, window=T0 + WINDOW_S)
    with pytest.raises(WitnessUnavailable):
        bench.ask(later)
    with pytest.raises(WitnessUnavailable):
        bench.ask(later)
    stand.start()
    assert patiently(lambda: bench.ask(later)).share


@pytest.mark.parametrize(
    "step", ["after CommitAnswer", "between commit and sum", "between commit and witness"]
)
def test_crash_before_the_witness_knows_is_made_good_at_the_start(
    world: World, tmp_path: Path, step: str
) -> None:
    stand = MemoryStand()
    crash = crash_at(step)
    broken = ready(world, tmp_path / "live", stand, checkpoint=crash)
    batch = broken.batch(world.hosts)
    with pytest.raises(Crash):
        broken.ask(batch)
    broken.state.close()
    assert stand.open().head().sequence == (1 if step == "after CommitAnswer" else 0)
    again = ready(world, tmp_path / "live", stand)
    other = again.batch(world.hosts[:-1])
    assert again.ask(other).refusal == "answered_otherwise"
    assert stand.open().head() == again.state.chain_end()
    assert again.ask(batch).share
    assert again.state.chain_end().sequence == 1


def crash_at(step: str) -> Callable[[str], None]:
    def crash(at: str) -> None:
        if at == step:
            raise Crash

    return crash


def test_reply_leaves_after_the_commit_and_the_witness(world: World, tmp_path: Path) -> None:
    stand = MemoryStand()
    steps: list[tuple[str, int, int]] = []

    def note(step: str) -> None:
        held = [len(chain) for chain in stand.chains.values()]
        steps.append((step, bench.state.chain_end().sequence, sum(held)))

    (tmp_path / "live").mkdir()
    bench = Bench(world, tmp_path / "live", witness=stand.open(), checkpoint=note)
    give_epochs(bench, world.hosts)
    assert bench.ask(bench.batch(world.hosts)).share
    named = ("Reply", "witness", "after CommitAnswer")
    assert [entry for entry in steps if any(name in entry[0] for name in named)] == [
        ("before StoreReply", 1, 0),
        ("after StoreReply", 1, 0),
        ("between commit and witness", 1, 0),
        ("after CommitAnswer", 1, 1),
    ]


def test_witness_that_was_rolled_back_is_said_and_refused(
    world: World, tmp_path: Path, stand: Stand
) -> None:
    if isinstance(stand, ProcessStand):
        stand.back_up(0)
    bench = ready(world, tmp_path / "live", stand)
    for number in range(2):
        window = T0 + number * WINDOW_S
        bench.clock.now_s = window + WINDOW_S + 6
        batch = bench.batch(world.hosts, window=window)
        assert patiently(partial(bench.ask, batch)).share
    bench.state.close()
    stand.forget(0)
    again = ready(world, tmp_path / "live", stand)
    with pytest.raises(RollbackSeen, match="the witness was rolled back"):
        patiently(lambda: again.ask(again.batch(world.hosts[:-1])))
    # The operator's word closes what is over, and gives the witness its links again.
    chain = WitnessedChain(again.state, stand.open())
    patiently(lambda: chain.after_restore(again.clock()))
    assert stand.open().head() == again.state.chain_end()
    again.state.close()
    after = ready(world, tmp_path / "live", stand)
    assert after.ask(after.batch(world.hosts)).refusal == "closed_before_restore"


def test_after_a_restore_windows_up_to_the_witnessed_ones_are_closed(
    world: World, tmp_path: Path, stand: Stand
) -> None:
    ready(world, tmp_path / "live", stand).state.close()
    backup = copy_of(tmp_path / "live", "backup")
    live = ready(world, tmp_path / "live", stand)
    for window in (T0, T0 + WINDOW_S):
        live.clock.now_s = window + WINDOW_S + 6
        assert live.ask(live.batch(world.hosts, window=window)).share
    live.state.close()

    # The copy's clock stands where the snapshot was taken: before the second window ended.
    restored = ready(world, backup, stand)
    WitnessedChain(restored.state, stand.open()).after_restore(T0 + WINDOW_S + 5)
    assert restored.state.refuse_before_s == T0 + 2 * WINDOW_S
    restored.state.close()
    restored = ready(world, backup, stand)
    restored.clock.now_s = T0 + 3 * WINDOW_S + 6
    for window in (T0, T0 + WINDOW_S):
        refused = restored.ask(restored.batch(world.hosts[:-1], window=window))
        assert refused.refusal == "closed_before_restore"
    assert restored.ask(restored.batch(world.hosts, window=T0 + 2 * WINDOW_S)).share
    assert stand.open().head() == restored.state.chain_end()
    assert restored.state.chain_end().sequence == 3


def test_copy_that_was_left_behind_stays_out_after_the_other_went_on(
    world: World, tmp_path: Path
) -> None:
    """A fork that the second of two copies committed is given up for the witness's chain."""
    stand = MemoryStand()
    ready(world, tmp_path / "one", stand).state.close()
    other = ready(world, copy_of(tmp_path / "one", "two"), stand)
    assert other.ask(b"").refusal == "length"
    one = ready(world, tmp_path / "one", stand)
    assert one.ask(one.batch(world.hosts)).share
    with pytest.raises(RollbackSeen):
        other.ask(other.batch(world.hosts[:-1]))
    other.state.close()
    # It committed an answer of its own, which never left: its chain is as long as the witness's.
    other = ready(world, tmp_path / "two", stand)
    with pytest.raises(RollbackSeen, match="another"):
        other.ask(other.batch(world.hosts[:-1]))
    extend(stand.open(), 1)
    WitnessedChain(other.state, stand.open()).after_restore(other.clock())
    assert other.state.chain_end() == stand.open().head()
    other.state.close()
    other = ready(world, tmp_path / "two", stand)
    assert other.ask(other.batch(world.hosts[:-1])).refusal == "closed_before_restore"


def test_witness_that_forgets_what_it_gave_back_after_a_restore_is_refused(
    world: World, tmp_path: Path
) -> None:
    stand = MemoryStand()
    ready(world, tmp_path / "live", stand).state.close()
    backup = copy_of(tmp_path / "live", "backup")
    live = ready(world, tmp_path / "live", stand)
    assert live.ask(live.batch(world.hosts)).share
    restored = ready(world, backup, stand)
    WitnessedChain(restored.state, stand.open()).after_restore(restored.clock())
    stand.forget(0)
    for ask in (
        WitnessedChain(restored.state, stand.open()).settle,
        partial(WitnessedChain(restored.state, stand.open()).after_restore, restored.clock()),
    ):
        with pytest.raises(RollbackSeen, match="new identity"):
            ask()
