"""What a lying host, Helper or Leader can do to a release: beyond the possible it is stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregator.protocol.interfaces import BatchReply, HelperPort, HelperStatus, ReleaseReply
from aggregator.statistics.range_checks import SumRules
from aggregator.transcripts.transcript import export_transcript, read_transcript
from aggregator.transcripts.transcript_check import verify_transcripts
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Fleet,
    World,
    build_world,
    honest_reports,
    open_epochs,
    seal_report,
    true_sum,
    vector_of,
)
from wire.batch import Release, SignedBatch, SignedRelease, SignedShare, vector_hash

CELL = 4
HOSTS = 10


class ShiftingHelper:
    """Signs a sum of masks that is `shift` off in one word; its check words are right."""

    def __init__(self, inner: HelperPort, world: World, shift: int) -> None:
        self._inner, self._world, self._shift = inner, world, shift

    def submit_epochs(self, epochs: list[bytes]) -> None:
        self._inner.submit_epochs(epochs)

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        reply = self._inner.submit_batch(signed_batch, epochs_complete=epochs_complete)
        if not reply.share:
            return reply
        n = SignedBatch.decode(signed_batch).batch.n
        share = SignedShare.decode(reply.share, n, self._world.task.d).share
        vector = share.vector.copy()
        vector[CELL] -= np.uint32(self._shift)
        lie = replace(share, vector=vector)
        signed = SignedShare(lie, self._world.helper_key.sign(lie.unsigned()))
        return replace(reply, share=signed.encode())

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply:
        return self._inner.submit_release(entry, vector)

    def status(self) -> HelperStatus:
        return self._inner.status()


def run(world: World, folder: Path, *, host: int = 0, helper: int = 0) -> Fleet:
    """One window in which a host or the Helper shifts one word by so many steps."""
    fleet = Fleet(world, folder)
    if helper:
        fleet.port = ShiftingHelper(fleet.port, world, helper)  # type: ignore[assignment]
    fleet.send_epochs(open_epochs(world))
    reports = honest_reports(world)
    lie = vector_of(world.hosts[3], T0, world.task.d)
    lie[CELL] += host
    reports[3] = seal_report(world, world.hosts[3], lie)
    fleet.send(reports)
    fleet.close_window()
    return fleet


@pytest.mark.parametrize(
    "lie", [{"host": 2**31 - 1}, {"host": -(2**31)}, {"host": 10**6}, {"helper": 10**6}], ids=str
)
def test_sum_that_no_honest_hosts_have_is_suppressed(lie: dict[str, int], tmp_path: Path) -> None:
    fleet = run(build_world(HOSTS), tmp_path, **lie)
    assert fleet.store.written == []
    assert fleet.leader.suppressed == {"impossible_sum": 1}
    (window,) = fleet.store.suppressed
    assert (window.reason, window.hosts) == ("impossible_sum", HOSTS)
    (told,) = fleet.told
    assert "hosts can sum to in mix" in told.detail
    assert not any(character.isdigit() for character in told.detail.replace(f"{HOSTS} hosts", ""))


def test_window_after_a_suppressed_one_is_released_and_continues_the_chain(tmp_path: Path) -> None:
    world = build_world(HOSTS)
    fleet = run(world, tmp_path, host=10**6)
    after = T0 + WINDOW_S
    fleet.send(honest_reports(world, window=after), after + WINDOW_S + 1)
    fleet.close_window(after)
    (released,) = fleet.store.written
    assert np.array_equal(released.vector, true_sum(world, world.hosts, after))
    assert [window for window, _ in fleet.helper_state.chain(world.task.series, 0)] == [after]


def test_suppressed_window_is_not_asked_for_again(tmp_path: Path) -> None:
    """A second try would be a second sum of one window: the liar's way to a difference."""
    fleet = run(build_world(HOSTS), tmp_path, host=10**6)
    fleet.restart_leader()
    fleet.tick(T0 + 10 * WINDOW_S)
    assert fleet.store.written == []
    assert fleet.state.counts()["suppressed"] >= 1


@pytest.mark.parametrize("who", ["host", "helper"])
def test_lie_within_the_possible_is_released(who: str, tmp_path: Path) -> None:
    """The threat model says so: nothing tells it from what honest hosts may have done."""
    world = build_world(HOSTS)
    honest = true_sum(world, world.hosts)
    possible = SumRules().of(world.task, HOSTS)
    total = int(honest[2:].sum() - honest[CELL])
    word = int(possible.high[CELL] + possible.reach * possible.deviation[CELL])
    section = int(possible.totals[0].high + possible.reach * possible.deviation[CELL] * 2)
    shift = min(word, section - total) - int(honest[CELL])
    fleet = run(world, tmp_path, **{who: shift - 1})
    assert fleet.store.written[0].vector[CELL] - honest[CELL] == shift - 1
    again = tmp_path / "again"
    again.mkdir()
    beyond = run(world, again, **{who: shift + 2})
    assert beyond.store.written == []


def forged_release(fleet: Fleet, shift: int, d: int) -> tuple[bytes, bytes]:
    """A release of the answered window by a Leader that adds to a word, and its vector."""
    world = fleet.world
    (_, entry), *_ = fleet.helper_state.chain(world.task.series, 0)
    genuine = SignedRelease.decode(entry).release
    vector = np.zeros(d, dtype=np.int64)
    vector[: world.task.d] = true_sum(world, world.hosts)[:d]
    vector[CELL] += shift
    words = vector.astype(np.uint32)
    lie = Release(genuine.prev, genuine.batch_hash, genuine.share_hash, vector_hash(words))
    signature = world.leader_key.sign(lie.unsigned())
    return SignedRelease(lie, signature).encode(), words.astype("<u4").tobytes()


@pytest.mark.parametrize(
    ("shift", "words", "refusal"),
    [
        (10**6, lambda d: d, "impossible_sum"),
        (-(10**6), lambda d: d, "impossible_sum"),
        (0, lambda d: d + 1, "release_vector"),
        (700, lambda d: d, ""),
    ],
)
def test_helper_signs_no_impossible_release(
    shift: int, words: Callable[[int], int], refusal: str, tmp_path: Path
) -> None:
    """A Leader that publishes what no hosts can have sent stands alone with its signature."""
    fleet = run(build_world(HOSTS), tmp_path)
    entry, vector = forged_release(fleet, shift, words(fleet.world.task.d))
    fleet.helper_state._db.execute("DELETE FROM chain")
    assert fleet.port.submit_release(entry, vector).refusal == refusal


def test_transcripts_show_the_share_under_which_a_window_was_suppressed(tmp_path: Path) -> None:
    world = build_world(HOSTS)
    fleet = run(world, tmp_path, host=10**6)
    leader = read_transcript(tmp_path / "leader.sqlite")
    helper = read_transcript(tmp_path / "helper.sqlite")
    (kept,) = leader.unreleased
    assert (kept.window, kept.reason) == (T0, "impossible_sum")
    verdict = verify_transcripts(leader, helper, world.parties)
    assert (verdict.sound, verdict.unreleased) == (True, 1)
    for transcript in (leader, helper):
        export_transcript(transcript, tmp_path / "exported.json")
        assert read_transcript(tmp_path / "exported.json") == transcript
    assert [answered.share for answered in helper.unreleased] == [b""]
    made_up = replace(kept, share=kept.share[:-70] + bytes(70))
    forged = verify_transcripts(replace(leader, unreleased=(made_up,)), helper, world.parties)
    assert any("did not sign" in problem for problem in forged.problems)
    fleet.state.close()


def test_transcripts_part_where_the_helper_denies_the_share_that_it_signed(tmp_path: Path) -> None:
    """The Helper's state has the honest share; what it sent under its signature is another."""
    world = build_world(HOSTS)
    fleet = run(world, tmp_path, helper=10**6)
    leader = read_transcript(tmp_path / "leader.sqlite")
    helper = read_transcript(tmp_path / "helper.sqlite")
    verdict = verify_transcripts(leader, helper, world.parties)
    assert any("another share" in problem for problem in verdict.problems)
    fleet.state.close()


def test_lie_that_hides_in_a_window_shows_when_it_goes_on(tmp_path: Path) -> None:
    """Below zero by less than noise may be, minute after minute; then honest windows pass again."""
    world = build_world(HOSTS)
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs(open_epochs(world))
    sums = SumRules().of(world.task, HOSTS)
    shift = -int(0.7 * sums.reach * sums.deviation[CELL])
    liars = 6
    for number in range(9):
        window = T0 + number * WINDOW_S
        vectors = [np.where(np.arange(world.task.d) < 2, 1, 0) for _ in world.hosts]
        vectors[3][CELL] += shift if number < liars else 0
        reports = [
            seal_report(world, host, vector, window=window)
            for host, vector in zip(world.hosts, vectors, strict=True)
        ]
        fleet.send(reports, window + WINDOW_S + 1)
        fleet.close_window(window)
    lost = [(window.window_start_s - T0) // WINDOW_S for window in fleet.store.suppressed]
    assert fleet.leader.suppressed == {"impossible_sum": len(lost)}
    # One alone passes; every third in a row breaks the hour, which then begins anew.
    assert lost == [2, 5]
    assert all("over windows of 3600 s" in told.detail for told in fleet.told)
