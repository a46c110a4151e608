"""The Leader's calls of its Helper: an effect goes out, and an event says what came back."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

from aggregator.protocol.helper_port import (
    BatchReply,
    HelperPort,
    HelperUnavailable,
    ReleaseReply,
)
from wire.rejection import Reason

from .leader_events import CallCountersign, CallHelper, HelperAnswer

EPOCHS_PER_CALL: Final = 2_000
"""Epochs of one message: 5 MB, so that no party ever holds 100,000 of them in one buffer."""


def call_helper(
    port: HelperPort | None,
    effect: CallHelper | CallCountersign,
    epochs: Iterable[bytes],
    clock: Callable[[], float],
) -> HelperAnswer:
    """Hand over what the Helper asked for, then the batch or the release; say what came back.

    port        None where there is no Helper, who is away then
    epochs      raw, those that the effect names, as far as the Leader keeps them
    """
    reply = None if port is None else _reply(port, effect, epochs)
    return HelperAnswer(effect.key, reply, clock())


def _reply(
    port: HelperPort, effect: CallHelper | CallCountersign, epochs: Iterable[bytes]
) -> BatchReply | ReleaseReply | None:
    """The Helper's reply, as far as it says something that a Helper may say here."""
    try:
        if isinstance(effect, CallCountersign):
            signed = port.submit_release(effect.entry, effect.vector)
            return signed if signed.entry or signed.refusal in _REASONS else None
        if effect.wanted is not None:
            for part in _parts(epochs):
                port.submit_epochs(part)
        reply = port.submit_batch(effect.signed_batch, epochs_complete=effect.wanted is not None)
    except HelperUnavailable:
        return None
    if reply.share:
        # Nothing signs these words, and every reader of the release gets them.
        cleared = {reason: n for reason, n in reply.cleared.items() if reason in _REASONS}
        return BatchReply(share=reply.share, cleared=cleared)
    if reply.need_epochs and effect.wanted is None:  # it was told that there are no more
        return BatchReply(need_epochs=reply.need_epochs)
    return BatchReply(refusal=reply.refusal) if reply.refusal in _REASONS else None


_REASONS = frozenset(reason.value for reason in Reason)


def _parts(epochs: Iterable[bytes]) -> Iterator[list[bytes]]:
    rest = iter(epochs)
    while part := list(islice(rest, EPOCHS_PER_CALL)):
        yield part


class HelperCalls:
    """A thread of its own that calls the Helper; the Leader's loop takes what came back."""

    def __init__(self, helper: HelperPort | None, clock: Callable[[], float]) -> None:
        """Call nobody yet; without a Helper every call says that it is away."""
        self._helper, self._clock = helper, clock
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="helper-call")
        self._answers = queue.SimpleQueue[HelperAnswer]()
        self._statuses = queue.SimpleQueue[tuple[bytes, ...] | None]()
        self.under_way = 0
        """Calls whose answer was not yet taken."""

    def begin(self, effect: CallHelper | CallCountersign, epochs: list[bytes]) -> None:
        """Call; `epochs` are those that the effect names."""
        self.under_way += 1
        self._pool.submit(self._call, effect, epochs)

    def ask_status(self) -> None:
        """Ask for the Helper's key announcements, where there is one."""
        if self._helper is not None:
            self._pool.submit(self._ask, self._helper)

    def answers(self) -> Iterator[HelperAnswer]:
        """Take what came back of calls."""
        while not self._answers.empty():
            event = self._answers.get_nowait()
            self.under_way -= 1
            yield event

    def announced(self) -> Iterator[tuple[bytes, ...] | None]:
        """Take key announcements; None for each time that the Helper did not answer."""
        while not self._statuses.empty():
            yield self._statuses.get_nowait()

    def wait(self) -> None:
        """Wait until everything that was begun has come back."""
        self._pool.submit(lambda: None).result()

    def close(self) -> None:
        """Wait for the call that is under way, and drop those behind it."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _call(self, effect: CallHelper | CallCountersign, epochs: list[bytes]) -> None:
        self._answers.put(call_helper(self._helper, effect, epochs, self._clock))

    def _ask(self, helper: HelperPort) -> None:
        try:
            self._statuses.put(tuple(helper.status().key_announcements))
        except HelperUnavailable:
            self._statuses.put(None)
