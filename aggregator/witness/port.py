"""A witness as the Helper sees it.

The contract, which `tests/aggregator/witness/test_conformance_witness.py` holds for each:

- A link is taken only where it continues the chain: compare and set.
- A link that was taken is durable when `append` returns, and the same link again changes nothing.
- Chains of several Helpers do not meet.
- Every call ends within a stated time.
"""

from __future__ import annotations

from typing import Protocol

from wire.witness import ChainHead, ChainLink


class WitnessUnavailable(Exception):
    """The witness is away, refuses, or answers what it may not; the Helper waits and asks again.

    The message says what was expected and what came.
    """


class RollbackSeen(Exception):
    """State and witness contradict each other: nothing may be answered; says how to go on."""


class Witness(Protocol):
    """Keeps one Helper's chain outside its machine; used by one thread at a time."""

    def head(self) -> ChainHead:
        """Say where the chain stands.

        Raises      WitnessUnavailable
        """
        ...

    def append(self, link: ChainLink) -> ChainHead:
        """Take a link if it continues the chain; say where the chain stands then.

        Returns     the link's own head when it was taken, now or before; else another
        Raises      WitnessUnavailable: it may have been taken or not
        """
        ...

    def close(self) -> None:
        """Let go of the connection; a second call does nothing."""
        ...
