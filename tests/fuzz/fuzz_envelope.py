"""Envelopes and signed messages: one encoding each, whatever the log holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.fuzz.fuzz_wire import need_reason, vectors
from wire import labels
from wire.envelope import Signed, core_place, unwrap, wrap
from wire.rejection import ReportRejected

_LABELS: Final = (labels.TASK, labels.ROSTER, labels.ENTRY_ANSWER)
_MOST_BYTES: Final = 4096


def fuzz(data: bytes) -> None:
    if not data:
        return
    content, choice = data[1:], data[0] % (1 + len(_LABELS))
    try:
        if choice:
            signed = Signed.decode(content, _LABELS[choice - 1])
            assert signed.encode() == content, "two encodings of one signed message"
        else:
            kind, core = unwrap(content, _MOST_BYTES)
            assert wrap(kind, core) == content, "two encodings of one envelope"
            assert core_place(content, _MOST_BYTES)[1] == len(content) - len(core)
    except ReportRejected as rejected:
        need_reason(rejected)


def seeds() -> Iterator[bytes]:
    yield from (b"\0" + content for content in vectors("envelope"))
    for place in range(len(_LABELS)):
        yield from (bytes([1 + place]) + content for content in vectors("signed"))
