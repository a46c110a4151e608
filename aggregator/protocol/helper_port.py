"""How the Leader speaks to its Helper, whatever lies between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

PROTOCOL_VERSION: Final = "plst1"


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
