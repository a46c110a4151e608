"""What a Leader takes of its Helper's answers."""

from __future__ import annotations

from collections.abc import Sequence

from aggregator.leader.helper_calls import call_helper
from aggregator.leader.leader_events import CallHelper, ShareCame
from aggregator.protocol.answers import BatchKey
from aggregator.protocol.helper_port import BatchReply, HelperStatus, ReleaseReply

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
    event = call_helper(TalkativeHelper(), CallHelper(KEY, b"share", None), lambda _: [], lambda: 1)
    assert event == ShareCame(KEY, b"share", {"tag": 2}, 1)
