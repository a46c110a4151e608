"""Letters about messages that were refused: where each lies on the log and why, bounded by time.

A letter never holds more of a message than its place and length, unless that is asked for.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from typing import Final

from aggregator.party.quotas import DeadLetterQuota
from transport.port import Record
from wire.rejection import Reason

MINUTE_S: Final = 60.0
LONGEST_RECORD_BYTES: Final = 16 << 10
"""Of a refused message that a letter may hold."""


class DeadLetters:
    """Gathers letters until the shell takes them.

    A minute's letters and bytes are bounded; what finds no room is counted alone. The message
    itself stays on its topic until that forgets it.
    """

    def __init__(self, quota: DeadLetterQuota | None) -> None:
        """Begin; without a quota nothing is written."""
        self._quota = quota
        self._waiting: deque[bytes] = deque()
        self._minute_s = 0.0
        self._letters = self._bytes = 0
        self.written = 0
        self.dropped = 0

    def note(
        self, record: Record, reason: Reason, now_s: float, host_id: bytes | None = None
    ) -> None:
        """Write of one refused message.

        host_id     who sent it, where that was authenticated
        """
        quota = self._quota
        if quota is None:
            return
        if not 0 <= now_s - self._minute_s < MINUTE_S:
            self._minute_s, self._letters, self._bytes = now_s, 0, 0
        if self._letters >= quota.per_minute:
            self.dropped += 1
            return
        letter = _letter(record, reason, now_s, host_id, with_record=quota.records)
        if self._bytes + len(letter) > quota.bytes_per_minute:
            self.dropped += 1
            return
        self._letters += 1
        self._bytes += len(letter)
        self._waiting.append(letter)
        while len(self._waiting) > quota.per_minute:  # the log is away
            self._waiting.popleft()
            self.dropped += 1

    def counts(self) -> dict[str, int]:
        """Letters since the start, by what became of them."""
        return {"written": self.written, "dropped": self.dropped}

    def take(self) -> list[bytes]:
        """Give what is to be written now, once."""
        taken = list(self._waiting)
        self._waiting.clear()
        self.written += len(taken)
        return taken


def _letter(
    record: Record, reason: Reason, now_s: float, host_id: bytes | None, *, with_record: bool
) -> bytes:
    content: dict[str, object] = {
        "reason": reason.value,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "appended_s": int(record.appended_s),
        "refused_s": int(now_s),
        "bytes": len(record.value),
    }
    if host_id is not None:
        content["host_id"] = host_id.hex()
    if with_record and len(record.value) <= LONGEST_RECORD_BYTES:
        content["record"] = base64.b64encode(record.value).decode()
    return json.dumps(content, sort_keys=True).encode()
