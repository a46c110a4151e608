"""What a Leader takes of its Helper's answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aggregator.leader.leader_events import CallHelper, HelperAnswer
from aggregator.leader.leader_runner import call_helper
from aggregator.protocol.interfaces import BatchKey, BatchReply, HelperStatus, ReleaseReply
from tests.protocol_kit import T0, WINDOW_S, Fleet, build_world, honest_reports, open_epochs
from wire.batch import SignedBatch

KEY = BatchKey(bytes(32), 0, 60)


class TalkativeHelper:
    """Clears bits for a reason that no party has, which would break readers' SQL and terminals."""

    def submit_epochs(self, epochs: Sequence[bytes]) -> None:
        raise NotImplementedError

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        return BatchReply(share=signed_batch, cleared={"tag": 2, 'a"\x1b]0;b': 7})

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply:
        raise NotImplementedError

    def status(self) -> HelperStatus:
        raise NotImplementedError


def test_reasons_that_no_party_has_do_not_reach_a_release() -> None:
    event = call_helper(TalkativeHelper(), CallHelper(KEY, b"share", None), [], lambda: 1)
    assert event == HelperAnswer(KEY, BatchReply(share=b"share", cleared={"tag": 2}), 1)


class InsatiableHelper(TalkativeHelper):
    """Asks for every epoch of the first batch a hundred times, and for one that is none."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.batches = 0

    def submit_epochs(self, epochs: Sequence[bytes]) -> None:
        self.given.append(len(epochs))

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply:
        self.batches += 1
        names = SignedBatch.decode(signed_batch).batch.epoch_names()
        return BatchReply(need_epochs=[*names, *names, b"none"] * 50)


def test_epochs_are_handed_over_once_each_however_often_they_are_asked_for(tmp_path: Path) -> None:
    world, helper = build_world(9), InsatiableHelper()
    fleet = Fleet(world, tmp_path, helper=helper)
    fleet.send_epochs(open_epochs(world))
    fleet.send(honest_reports(world), T0 + WINDOW_S + 1)
    fleet.close_window()
    assert (helper.given, helper.batches) == ([9], 2)
    fleet.state.close()
