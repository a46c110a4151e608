"""Untrusted bytes: a value or a typed rejection, nothing else, and memory bounded."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from wire import labels
from wire.batch import SignedBatch, SignedRelease, SignedShare
from wire.envelope import Kind, Signed, unwrap, wrap
from wire.epoch import Epoch, KeyAnnouncement
from wire.fields import MAX_ENTRY_BODY, MAX_TASK_BODY, Scheme
from wire.join import JoinRequest, SealedJoin, Voucher
from wire.proto import pointillist_pb2 as pb
from wire.rejection import Reason, ReportRejected
from wire.report import Report, report_length
from wire.roster import EntryAnswer, Roster
from wire.task import Task
from wire.witness import ChainLink, WitnessAsk, WitnessHead

Decode = Callable[[bytes], Any]
DECODERS: dict[str, Decode] = {
    "signed": lambda data: Signed.decode(data, labels.TASK),
    "key_announcement": KeyAnnouncement.decode,
    "epoch": Epoch.decode,
    "report": Report.decode,
    "batch": SignedBatch.decode,
    "share": lambda data: SignedShare.decode(data, 10, 4),
    "release": SignedRelease.decode,
    "link": ChainLink.decode,
    "witness_ask": WitnessAsk.decode,
    "witness_head": WitnessHead.decode,
    "envelope": lambda data: unwrap(data, 4096),
    "task": Task.decode_body,
    "roster": Roster.decode_body,
    "voucher": Voucher.decode,
    "join_request": JoinRequest.decode,
    "sealed_join": SealedJoin.decode,
    "entry_answer": EntryAnswer.decode_body,
}
BODIES = {"task", "roster", "entry_answer"}
VECTORS = Path(__file__).resolve().parents[1] / "vectors"


def _good(message: str) -> bytes:
    operations = json.loads((VECTORS / f"{message}.json").read_text())["operations"]
    return bytes.fromhex(next(one["input"] for one in operations if one["verdict"] == "accept"))


GOOD = {message: _good(message) for message in DECODERS}


def _value_or_rejection(message: str, data: bytes) -> Any:
    """Decode; a rejection is None and anything else is an error of the test."""
    try:
        return DECODERS[message](data)
    except ReportRejected as error:
        rejected = error
    assert rejected.reason in Reason
    assert len(str(rejected)) < 400
    return None


@pytest.mark.parametrize("message", DECODERS)
@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=3000))
def test_random_bytes_give_value_or_rejection(message: str, data: bytes) -> None:
    _value_or_rejection(message, data)


@pytest.mark.parametrize("message", DECODERS)
@settings(max_examples=120, deadline=None)
@given(cuts=st.data())
def test_mutated_bytes_give_value_or_rejection(message: str, cuts: st.DataObject) -> None:
    data = bytearray(GOOD[message])
    for _ in range(cuts.draw(st.integers(1, 3))):
        at = cuts.draw(st.integers(0, len(data) - 1))
        length = cuts.draw(st.integers(0, min(16, len(data) - at)))
        data[at : at + length] = cuts.draw(st.binary(max_size=16))
        if not data:
            break
    value = _value_or_rejection(message, bytes(data))
    if value is not None and message not in BODIES | {"envelope"}:
        assert value.encode() == bytes(data), "two encodings of one value"


@pytest.mark.parametrize("message", sorted(set(DECODERS) - BODIES))
@pytest.mark.parametrize("change", [b"\0", b"\xff" * 64])
def test_left_over_bytes_are_refused(message: str, change: bytes) -> None:
    with pytest.raises(ReportRejected):
        DECODERS[message](GOOD[message] + change)


@pytest.mark.parametrize("message", DECODERS)
def test_every_prefix_is_refused_or_another_value(message: str) -> None:
    good = DECODERS[message](GOOD[message])
    for length in range(0, len(GOOD[message]), max(len(GOOD[message]) // 100, 1)):
        value = _value_or_rejection(message, GOOD[message][:length])
        assert value is None or value != good


def test_announced_lengths_allocate_nothing() -> None:
    """A batch that claims 2^20 hosts, a report that claims 2^20 words: refused before memory."""
    huge_batch = GOOD["batch"][:68] + b"\x00\x10\x00\x00" + GOOD["batch"][72:]
    huge_report = GOOD["report"][:84] + b"\x00\x10\x00\x00" + GOOD["report"][88:]
    tracemalloc.start()
    for message, data in (("batch", huge_batch), ("report", huge_report)):
        with pytest.raises(ReportRejected):
            DECODERS[message](data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    ("message", "limit"),
    [("task", MAX_TASK_BODY), ("entry_answer", MAX_ENTRY_BODY), ("envelope", 4096)],
)
def test_bytes_above_the_limit_are_refused_by_length(message: str, limit: int) -> None:
    with pytest.raises(ReportRejected) as caught:
        DECODERS[message](bytes(limit + 1))
    assert caught.value.reason is Reason.LENGTH


@pytest.mark.parametrize("scheme", Scheme)
@given(d=st.integers(3, 40), flip=st.integers(0))
@settings(max_examples=40, deadline=None)
def test_report_length_is_exact(scheme: Scheme, d: int, flip: int) -> None:
    good = bytearray(GOOD["report"][:128])
    good[84:88] = d.to_bytes(4, "big")
    if scheme is Scheme.LOCAL:
        good[112:128] = bytes(16)
    good += bytes(report_length(d, scheme) - 128)
    report = Report.decode(bytes(good))
    assert (report.scheme, report.header.d) == (scheme, d)
    other = flip % (2 * len(good))
    if other not in {report_length(d, one) for one in Scheme}:
        with pytest.raises(ReportRejected):
            Report.decode(bytes(good).ljust(other, b"\0")[:other])


@given(data=st.data())
@settings(deadline=None)
def test_envelope_takes_just_what_protobuf_writes(data: st.DataObject) -> None:
    """Whatever is altered, an accepted envelope is the one encoding of its kind and core."""
    core = data.draw(st.sampled_from([b"", b"a", bytes(127), bytes(128), bytes(3000)]))
    raw = bytearray(wrap(data.draw(st.sampled_from(Kind)), core))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(0, min(8, len(raw))))
        raw[at : at + data.draw(st.integers(0, 1))] = data.draw(st.binary(max_size=2))
    value = _value_or_rejection("envelope", bytes(raw))
    message = pb.Envelope()
    with suppress(DecodeError):
        message.ParseFromString(bytes(raw))
    kinds = {int(kind): kind for kind in Kind}
    kind = kinds.get(message.kind)
    if kind is not None and message.core and wrap(kind, message.core) == raw:
        assert value == (kind, message.core)
    else:
        assert value is None
