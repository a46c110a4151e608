"""The port through which a running agent shows itself on its own host; nothing flows back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from collectors.port import Source
from collectors.records.activity import Record


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """What an agent counts; names and numbers, nothing measured.

    next_send_ms   when the next record leaves, milliseconds since 1970
    """

    sources: tuple[str, ...]
    published: int
    sealed: int
    epochs: int
    expired: int
    refused: Mapping[str, int]
    spool_records: int
    spool_bytes: int
    queued: int
    next_send_ms: int | None
    transport_up: bool


class Observer(Protocol):
    """Called by the loop; no method blocks for long, and none raises."""

    def started(self) -> None:
        """The loop begins."""
        ...

    def drained(
        self, source: Source, records: Sequence[Record], now_boottime_ns: int, failure: str | None
    ) -> None:
        """A source handed out records; failure says in one line why it could not go on."""
        ...

    def stepped(self, now_ms: int) -> None:
        """The loop went round once; about once a second."""
        ...

    def stopping(self) -> None:
        """The loop has ended; what is open is still there."""
        ...


class Unobserved:
    """Nobody looks."""

    def started(self) -> None:
        return

    def drained(
        self,
        source: Source,  # noqa: ARG002
        records: Sequence[Record],  # noqa: ARG002
        now_boottime_ns: int,  # noqa: ARG002
        failure: str | None,  # noqa: ARG002
    ) -> None:
        return

    def stepped(self, now_ms: int) -> None:  # noqa: ARG002
        return

    def stopping(self) -> None:
        return
