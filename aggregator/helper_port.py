"""How the Leader speaks to its Helper, whatever lies between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol

from wire.rejection import Reason

from .events import (
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


class HelperUnavailable(Exception):
    """The Helper cannot be reached or did not answer in time; the Leader tries again."""


@dataclass(frozen=True, slots=True)
class BatchReply:
    """Exactly one of a signed share, a refusal's reason or the epochs that the Helper lacks."""

    share: bytes = b""
    refusal: str = ""
    need_epochs: Sequence[bytes] = ()
    cleared: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReleaseReply:
    """The release under both signatures, or a refusal's reason."""

    entry: bytes = b""
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class HelperStatus:
    """What a Helper says about itself."""

    version: str
    helper_pk: bytes
    clock_s: int
    roster_version: int
    batches_answered: int
    refused: Mapping[str, int]
    key_announcements: Sequence[bytes]


class HelperPort(Protocol):
    """One Helper; every method raises HelperUnavailable."""

    def submit_epochs(self, epochs: Sequence[bytes]) -> None: ...

    def submit_batch(self, signed_batch: bytes, *, epochs_complete: bool) -> BatchReply: ...

    def submit_release(self, entry: bytes, vector: bytes) -> ReleaseReply: ...

    def status(self) -> HelperStatus: ...


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
