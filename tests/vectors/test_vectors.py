"""Known-answer vectors of every message, good and bad, against the decoders."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privacy import masks
from scripts import make_vectors
from wire import fields as ids
from wire import labels
from wire.batch import SignedBatch, SignedRelease, SignedShare, vector_hash
from wire.envelope import Kind, Signed, unwrap, wrap
from wire.epoch import Epoch, KeyAnnouncement
from wire.join import JoinRequest, SealedJoin, Voucher
from wire.rejection import ReportRejected
from wire.report import Report
from wire.roster import EntryAnswer, Roster
from wire.task import Task
from wire.witness import ChainLink, WitnessAsk, WitnessHead

Operation = dict[str, Any]
FOLDER = Path(__file__).parent


def _operations() -> list[Any]:
    found = []
    for path in sorted(FOLDER.glob("*.json")):
        content = json.loads(path.read_text())
        bases = {one["name"]: one for one in content["operations"]}
        for one in content["operations"]:
            merged = one | {"message": content["message"], "bytes": _input(one, bases)}
            found.append(pytest.param(merged, id=f"{content['message']}-{one['name']}"))
    return found


def _input(one: Operation, bases: dict[str, Operation]) -> bytes:
    if isinstance(one.get("input"), list):
        return b""
    data = bytearray.fromhex(one["input"] if "input" in one else bases[one["base"]]["input"])
    if "patch" in one:
        at, new = one["patch"][0], bytes.fromhex(one["patch"][1])
        data[at : at + len(new)] = new
    data += bytes.fromhex(one.get("append", ""))
    return bytes(data[: len(data) - one.get("cut", 0)])


def _unwrap(data: bytes, op: Operation) -> tuple[Kind, bytes]:
    return unwrap(data, op.get("max_len", 1000))


DECODERS: dict[str, Callable[[bytes, Operation], Any]] = {
    "signed": lambda data, _: Signed.decode(data, labels.TASK),
    "key_announcement": lambda data, _: KeyAnnouncement.decode(data),
    "epoch": lambda data, _: Epoch.decode(data),
    "report": lambda data, _: Report.decode(data),
    "batch": lambda data, _: SignedBatch.decode(data),
    "share": lambda data, op: SignedShare.decode(data, op["n"], op["d"]),
    "release": lambda data, _: SignedRelease.decode(data),
    "link": lambda data, _: ChainLink.decode(data),
    "witness_ask": lambda data, _: WitnessAsk.decode(data),
    "witness_head": lambda data, _: WitnessHead.decode(data),
    "envelope": _unwrap,
    "task": lambda data, _: Task.decode_body(data),
    "roster": lambda data, _: Roster.decode_body(data),
    "voucher": lambda data, _: Voucher.decode(data),
    "join_request": lambda data, _: JoinRequest.decode(data),
    "padded_join": lambda data, _: JoinRequest.from_padded(data),
    "sealed_join": lambda data, _: SealedJoin.decode(data),
    "entry_answer": lambda data, _: EntryAnswer.decode_body(data),
}
PARTS = ("header", "batch", "share", "release")


def _encode(value: Any) -> bytes:
    if isinstance(value, tuple):
        return wrap(*value)
    encoded = value.encode_body() if hasattr(value, "encode_body") else value.encode()
    assert isinstance(encoded, bytes)
    return encoded


def _field(value: Any, name: str) -> Any:
    """Find a field in a message, or in the part of it that holds it."""
    if isinstance(value, tuple):
        return {"kind": value[0], "core": value[1]}[name]
    if hasattr(value, name):
        return getattr(value, name)
    part = next(getattr(value, part) for part in PARTS if hasattr(value, part))
    return getattr(part, name) if hasattr(part, name) else part.entries[name]


def _plain(value: Any) -> Any:
    """Turn a field into what JSON holds."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, np.ndarray):
        rows = [row.tobytes().hex() for row in value] if value.dtype.kind == "V" else value
        return rows if isinstance(rows, list) else [int(one) for one in rows]
    if dataclasses.is_dataclass(value):
        fields = {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
        return list(fields.values()) if type(value).__name__ == "PlanMembership" else fields
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def _check_accept(op: Operation) -> None:
    value = DECODERS[op["message"]](op["bytes"], op)
    assert {name: _plain(_field(value, name)) for name in op["fields"]} == op["fields"]
    assert _encode(value) == op["bytes"]
    signed = next((getattr(value, part) for part in PARTS[1:] if hasattr(value, part)), value)
    if "unsigned" in op:
        assert signed.unsigned().hex() == op["unsigned"]
    if "hash" in op:
        assert signed.hash().hex() == op["hash"]
    if op["message"] == "task":
        assert value.d == op["d"]
    if op["message"] == "report":
        header = bytes.fromhex(op["header"])
        assert value.header.encode() == value.header_bytes == header
        assert value.aad == header + value.tag_h
    if op["message"] == "epoch" and "header" in op:
        assert value.header.encode().hex() == op["header"]
    if op["message"] == "release":
        vector = np.array(op["vector"], dtype=np.uint32)
        assert vector_hash(vector) == value.release.vector_hash


def _thirds(data: bytes) -> tuple[bytes, bytes, bytes]:
    return data[:32], data[32:64], data[64:]


def _boxed(data: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """k_box, report_id, M || tag_H and what is sealed or opened."""
    return data[:32], data[32:48], data[48:112], data[112:]


def _mask(k_mask: bytes, nonce: bytes) -> np.ndarray[Any, Any]:
    out = np.empty(5, dtype=np.uint32)
    masks.mask_into(k_mask, nonce, out)
    return out


def _check_derive(op: Operation) -> None:
    derive: dict[str, Callable[[Any], bytes]] = {
        "host_id": ids.host_id,
        "key_id": ids.key_id,
        "task_id": ids.task_id,
        "hardware_id": lambda data: ids.hardware_id(data[:32], data[32:].decode()),
        "voucher_id": ids.voucher_id,
        "label": lambda data: labels.label(data.decode()),
        "k_mask": lambda data: masks.derive_helper_keys(*_thirds(data))[0],
        "k_id": lambda data: masks.derive_helper_keys(*_thirds(data))[1],
        "k_box": lambda data: masks.derive_box_key(*_thirds(data)),
        "tag_h and nonce": lambda data: b"".join(masks.tag_and_nonce(data[:32], data[32:])),
        "mask of five words": lambda data: _mask(data[:32], data[32:]).tobytes(),
        "box": lambda data: masks.seal_box(*_boxed(data)),
        "open": lambda data: masks.open_box(*_boxed(data)),
    }
    given = tuple(op["input"]) if isinstance(op["input"], list) else op["bytes"]
    assert derive[op["name"]](given).hex() == op["output"]


@pytest.mark.parametrize("op", _operations())
def test_vector_gives_expected_verdict(op: Operation) -> None:
    if op["verdict"] == "accept":
        _check_accept(op)
    elif op["verdict"] == "padded":
        request = JoinRequest.from_padded(op["bytes"])
        assert request.encode().hex() == op["request"]
        assert request.padded() == op["bytes"]
    elif op["verdict"] == "derive":
        _check_derive(op)
    else:
        with pytest.raises(ReportRejected) as caught:
            DECODERS[op["message"]](op["bytes"], op)
        assert caught.value.reason.value == op["reason"], caught.value


@pytest.mark.parametrize("name", make_vectors.FILES)
def test_vector_file_is_what_the_script_writes(name: str) -> None:
    assert (FOLDER / f"{name}.json").read_text() == make_vectors.text(name)


def test_vector_files_are_all_listed() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(make_vectors.FILES)
