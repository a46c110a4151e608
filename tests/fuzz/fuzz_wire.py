"""Messages of the wire: a value that encodes to the same bytes, or a rejection with its reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from wire.batch import SignedBatch, SignedRelease, SignedShare
from wire.epoch import Epoch, KeyAnnouncement
from wire.join import Voucher
from wire.rejection import Reason, ReportRejected
from wire.report import Report
from wire.roster import EntryAnswer, Roster
from wire.task import Task
from wire.witness import ChainLink, WitnessAsk, WitnessHead

VECTORS: Final = Path(__file__).resolve().parents[1] / "vectors"
_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "report": Report.decode,
    "epoch": Epoch.decode,
    "key_announcement": KeyAnnouncement.decode,
    "batch": SignedBatch.decode,
    "share": lambda data: SignedShare.decode(data, 10, 4),
    "release": SignedRelease.decode,
    "link": ChainLink.decode,
    "witness_ask": WitnessAsk.decode,
    "witness_head": WitnessHead.decode,
    "voucher": Voucher.decode,
    "task": Task.decode_body,
    "roster": Roster.decode_body,
    "entry_answer": EntryAnswer.decode_body,
}
_BODIES: Final = frozenset({"task", "roster", "entry_answer"})
"""Only what is signed around them is compared byte by byte."""
_NAMES: Final = tuple(_DECODERS)


def fuzz(data: bytes) -> None:
    if not data:
        return
    name = _NAMES[data[0] % len(_NAMES)]
    content = data[1:]
    try:
        value = _DECODERS[name](content)
    except ReportRejected as rejected:
        need_reason(rejected)
        return
    if name not in _BODIES:
        assert value.encode() == content, f"{name}: two encodings of one value"


def need_reason(rejected: ReportRejected) -> None:
    """Hold a rejection to what its counter and its log line need."""
    assert rejected.reason in Reason
    assert len(str(rejected)) < 400


def vectors(name: str) -> Iterator[bytes]:
    """Give the whole inputs of a file of known answers, bad ones too."""
    for operation in json.loads((VECTORS / f"{name}.json").read_text())["operations"]:
        if isinstance(operation.get("input"), str):
            yield bytes.fromhex(operation["input"])


def seeds() -> Iterator[bytes]:
    for place, name in enumerate(_NAMES):
        for content in vectors(name):
            yield bytes([place]) + content
