"""The Leader's calls of its Helper: an effect goes out, and an event says what came back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from aggregator.protocol.helper_port import HelperPort, HelperUnavailable
from wire.rejection import Reason

from .leader_events import (
    BatchRefused,
    CallCountersign,
    CallHelper,
    Countersigned,
    EpochsWanted,
    HelperAway,
    LeaderEvent,
    ReleaseRefused,
    ShareCame,
)

EPOCHS_PER_CALL: Final = 2_000
"""Epochs of one message: 5 MB, so that no party ever holds 100,000 of them in one buffer."""

EpochsOf = Callable[[list[bytes]], Iterable[bytes]]
"""host_id 16 B || epoch_id 16 B each -> the raw epochs that the Leader keeps."""


def call_helper(
    port: HelperPort, effect: CallHelper, epochs_of: EpochsOf, clock: Callable[[], float]
) -> LeaderEvent:
    """Hand over what the Helper asked for, then the batch; say what came back."""
    try:
        if effect.wanted is not None:
            for part in _parts(epochs_of(list(effect.wanted))):
                port.submit_epochs(part)
        reply = port.submit_batch(effect.signed_batch, epochs_complete=effect.wanted is not None)
    except HelperUnavailable:
        return HelperAway(effect.key, clock())
    if reply.share:
        return ShareCame(effect.key, reply.share, reply.cleared, clock())
    if reply.need_epochs:
        return EpochsWanted(effect.key, reply.need_epochs, clock())
    if reply.refusal in _REASONS:
        return BatchRefused(effect.key, reply.refusal, clock())
    return HelperAway(effect.key, clock())


def call_countersign(
    port: HelperPort, effect: CallCountersign, clock: Callable[[], float]
) -> LeaderEvent:
    """Ask for the Helper's signature under a release."""
    try:
        reply = port.submit_release(effect.entry, effect.vector)
    except HelperUnavailable:
        return HelperAway(effect.key, clock())
    if reply.entry:
        return Countersigned(effect.key, reply.entry)
    if reply.refusal in _REASONS:
        return ReleaseRefused(effect.key, reply.refusal, clock())
    return HelperAway(effect.key, clock())


_REASONS = frozenset(reason.value for reason in Reason)


def _parts(epochs: Iterable[bytes]) -> Iterator[list[bytes]]:
    rest = iter(epochs)
    while part := list(islice(rest, EPOCHS_PER_CALL)):
        yield part
