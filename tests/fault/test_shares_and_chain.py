"""A share that does not fit, and a Leader that forks or skips its chain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregator.protocol.interfaces import BatchReply, HelperPort, HelperStatus, ReleaseReply
from tests.protocol_kit import (
    T0,
    WINDOW_S,
    Fleet,
    World,
    build_world,
    honest_reports,
    open_epochs,
    true_sum,
)
from wire.batch import SignedRelease, SignedShare


class LyingHelper:
    """Changes the share that it signs, or who signs it."""

    def __init__(self, inner: HelperPort, world: World, lie: str) -> None:
        self._inner, self._world, self._lie = inner, world, lie

    def submit_epochs(self, epochs: list[bytes]) -> None:
        self._inner.submit_epochs(epochs)

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        reply = self._inner.submit_batch(signed_batch, epochs_complete=epochs_complete)
        return replace(reply, share=self._bend(reply.share)) if reply.share else reply

    def _bend(self, raw: bytes) -> bytes:
        share = SignedShare.decode(raw, 9, self._world.task.d).share
        signer = self._world.helper_key
        if self._lie == "check words":
            share = replace(share, vector=share.vector + np.uint32(1))
        elif self._lie == "another batch":
            share = replace(share, batch_hash=bytes(32))
        elif self._lie == "too few":
            share = replace(share, accepted=np.arange(9) < 3)
        else:
            signer = self._world.leader_key
        return SignedShare(share, signer.sign(share.unsigned())).encode()

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply:
        return self._inner.submit_release(entry, vector)

    def status(self) -> HelperStatus:
        return self._inner.status()


def run(world: World, folder: Path, lie: str) -> Fleet:
    fleet = Fleet(world, folder)
    fleet.port = LyingHelper(fleet.port, world, lie)  # type: ignore[assignment]
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world))
    fleet.close_window()
    return fleet


def test_share_whose_sum_misses_the_check_words_suppresses_the_window(tmp_path: Path) -> None:
    fleet = run(build_world(9), tmp_path, "check words")
    assert fleet.store.written == []
    assert fleet.leader.suppressed == {"check_sum": 1}


@pytest.mark.parametrize(
    ("lie", "reason"),
    [("another batch", "share_batch"), ("too few", "n_min"), ("signer", "share_signature")],
)
def test_share_that_does_not_fit_releases_nothing(lie: str, reason: str, tmp_path: Path) -> None:
    fleet = run(build_world(9), tmp_path, lie)
    assert fleet.store.written == []
    assert fleet.leader.rejected[reason] == 1


def test_helper_signs_no_second_chain(tmp_path: Path) -> None:
    """A release that skips or forks the chain, or whose vector is another, is not signed."""
    world = build_world(9)
    fleet = Fleet(world, tmp_path)
    fleet.send_epochs(open_epochs(world))
    for number in range(2):
        window = T0 + number * WINDOW_S
        fleet.send(honest_reports(world, window=window), window + WINDOW_S + 1)
        fleet.close_window(window)
    entries = [entry for _, entry in fleet.helper_state.chain(world.task.series, 0)]
    vector = true_sum(world, world.hosts, T0 + WINDOW_S).astype(np.uint32).astype("<u4").tobytes()
    fleet.helper_state._db.execute("DELETE FROM chain WHERE window > ?", (T0,))
    second = SignedRelease.decode(entries[1]).release
    for changed, sent, reason in (
        (replace(second, prev=bytes(32)), vector, "release_chain"),
        (replace(second, share_hash=bytes(32)), vector, "release_chain"),
        (second, vector[:-4] + bytes(4), "release_vector"),
    ):
        signature = world.leader_key.sign(changed.unsigned())
        entry = SignedRelease(changed, signature).encode()
        assert fleet.port.submit_release(entry, sent).refusal == reason
    good = SignedRelease(second, world.leader_key.sign(second.unsigned())).encode()
    assert fleet.port.submit_release(good, vector).entry == entries[1]
    forged = SignedRelease(second, world.helper_key.sign(second.unsigned())).encode()
    assert fleet.port.submit_release(forged, vector).refusal == "release_signature"
