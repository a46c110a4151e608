"""Two witnesses of one Helper: each crash point, and what either may say wrongly."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator.witness.chain import RollbackSeen, WitnessedChain, WitnessUnavailable
from tests.aggregator.witness.test_rolled_back_helper import Crash, copy_of, give_epochs
from tests.aggregator.witness.witness_kit import MemoryStand, MemoryWitness
from tests.privacy.test_helper_batch_rules import Bench
from tests.protocol_kit import T0, WINDOW_S, build_world, open_epochs
from wire.witness import ChainHead, ChainLink


class CrashingWitness(MemoryWitness):
    """The Helper's process ends while this one is asked to take a link."""

    taken = False

    def append(self, link: ChainLink) -> ChainHead:
        if self.taken:
            super().append(link)
        raise Crash


class Pair:
    def __init__(self, folder: Path) -> None:
        self.world, self.folder = build_world(12), folder
        open_epochs(self.world)
        self.stands = (MemoryStand(), MemoryStand())

    def helper(self, name: str, *, crash_at: int | None = None, taken: bool = False) -> Bench:
        (self.folder / name).mkdir(exist_ok=True)
        one, two = (stand.open() for stand in self.stands)
        if crash_at is not None:
            crashing = CrashingWitness(self.stands[crash_at], self.world.helper_key.public_bytes)
            crashing.taken = taken
            one, two = (crashing, two) if crash_at == 0 else (one, crashing)
        bench = Bench(self.world, self.folder / name, witness=one, second_witness=two)
        give_epochs(bench, self.world.hosts)
        return bench

    def links(self) -> list[int]:
        return [stand.open().head().sequence for stand in self.stands]

    def restore(self, bench: Bench) -> None:
        witnesses = (stand.open() for stand in self.stands)
        WitnessedChain(bench.state, *witnesses).after_restore(bench.clock())


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


POINTS = pytest.mark.parametrize(
    ("crash_at", "taken", "links"),
    [(0, False, [0, 0]), (0, True, [1, 0]), (1, False, [1, 0]), (1, True, [1, 1])],
)


@POINTS
def test_crash_between_two_witnesses_is_mended_from_the_own_chain(
    pair: Pair, crash_at: int, taken: bool, links: list[int]
) -> None:
    broken = pair.helper("live", crash_at=crash_at, taken=taken)
    batch = broken.batch(pair.world.hosts)
    with pytest.raises(Crash):
        broken.ask(batch)
    broken.state.close()
    assert pair.links() == links
    again = pair.helper("live")
    assert again.ask(again.batch(pair.world.hosts[1:])).refusal == "answered_otherwise"
    assert pair.links() == [1, 1]
    assert again.ask(batch).share
    assert pair.links() == [1, 1]


@POINTS
def test_backup_of_before_the_crash_goes_on_only_where_nobody_had_the_link(
    pair: Pair, crash_at: int, taken: bool, links: list[int]
) -> None:
    pair.helper("live").state.close()
    copy_of(pair.folder / "live", "backup")
    broken = pair.helper("live", crash_at=crash_at, taken=taken)
    with pytest.raises(Crash):
        broken.ask(broken.batch(pair.world.hosts))
    broken.state.close()
    restored = pair.helper("backup")
    other = restored.batch(pair.world.hosts[1:])
    if links == [0, 0]:
        assert restored.ask(other).share  # no answer has left
        return
    with pytest.raises(RollbackSeen, match="rolled back") as refused:
        restored.ask(other)
    assert f"{links[0]} links up to" in str(refused.value)
    assert f"{links[1]} links up to" in str(refused.value)
    if links == [1, 1]:
        pair.restore(restored)
        return
    # Nobody has the link that the second lacks.
    with pytest.raises(RollbackSeen, match="new identity"):
        pair.restore(restored)
    assert (pair.links(), restored.state.chain_end().sequence) == (links, 0)


@pytest.mark.parametrize("away", [0, 1])
def test_answer_waits_for_each_witness(pair: Pair, away: int) -> None:
    bench = pair.helper("live")
    batch = bench.batch(pair.world.hosts)
    assert bench.ask(b"").refusal == "length"
    pair.stands[away].stop()
    for _ in range(2):
        with pytest.raises(WitnessUnavailable):
            bench.ask(batch)
    pair.stands[away].start()
    assert pair.links() == [1 if away else 0, 0]
    assert bench.ask(batch).share
    assert pair.links() == [1, 1]


@pytest.mark.parametrize("forgetful", [0, 1])
def test_running_copy_is_refused_by_the_witness_that_keeps_its_word(
    pair: Pair, forgetful: int
) -> None:
    pair.helper("one").state.close()
    copy_of(pair.folder / "one", "two")
    one, two = pair.helper("one"), pair.helper("two")
    assert two.ask(b"").refusal == "length"  # it has found itself level with both
    assert one.ask(one.batch(pair.world.hosts)).share
    pair.stands[forgetful].forget(0)
    with pytest.raises(RollbackSeen, match="another copy"):
        two.ask(two.batch(pair.world.hosts[1:]))
    two.state.close()
    with pytest.raises(RollbackSeen):
        pair.helper("two").ask(b"")


def test_witness_that_is_named_later_is_given_the_whole_chain(pair: Pair) -> None:
    first = pair.stands[0]
    (pair.folder / "live").mkdir()
    alone = Bench(pair.world, pair.folder / "live", witness=first.open())
    give_epochs(alone, pair.world.hosts)
    for window in (T0, T0 + WINDOW_S):
        alone.clock.now_s = window + WINDOW_S + 6
        assert alone.ask(alone.batch(pair.world.hosts, window=window)).share
    alone.state.close()
    beside = pair.helper("live")
    with pytest.raises(RollbackSeen, match="--after-restore"):
        beside.ask(b"")
    pair.restore(beside)
    assert pair.links() == [2, 2]
    # One alone may be lost again, and is given what it lacks.
    pair.stands[0].forget(0)
    pair.restore(beside)
    assert pair.links() == [2, 2]
