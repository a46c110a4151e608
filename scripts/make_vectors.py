"""Write tests/vectors/*.json from fixed inputs; with --check, only compare.

    python -m scripts.make_vectors [--check]

Each file holds operations with their expected verdict. A bad input is a good one with patches, so
that a reader sees what is wrong with it.
"""

from __future__ import annotations

import hmac
import json
import sys
from pathlib import Path
from typing import Any

from scripts.vector_bodies import (
    big,
    blob,
    entry_answer,
    expand,
    gcm,
    host_id,
    join_request,
    key_stream,
    label,
    number,
    padded_join,
    pattern,
    roster,
    sealed_join,
    sha,
    signed,
    task,
    voucher,
    words,
)

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "vectors"
Operation = dict[str, Any]
Fields = dict[str, Any]
SIG_L, SIG_H = pattern("sig-leader", 64), pattern("sig-helper", 64)


def laid(name: str, **parts: bytes | tuple[int, int]) -> tuple[bytes, Fields]:
    """Lay parts out behind a label, numbers as (value, bytes); give the bytes and what they say."""
    data = label(name) if name else b""
    for part in parts.values():
        data += part if isinstance(part, bytes) else big(*part)
    said = {key: part if isinstance(part, bytes) else part[0] for key, part in parts.items()}
    return data, said


def accept(name: str, data: bytes, fields: Fields, **more: Any) -> Operation:
    """The bytes decode to these fields and encode back to themselves."""
    return {"name": name, "verdict": "accept", **more, "input": data, "fields": fields}


def reject(name: str, base: str, reason: str, **change: Any) -> Operation:
    """The named good input, changed: patch (offset, bytes), cut (bytes off the end), append."""
    return {"name": name, "verdict": "reject", "base": base, "reason": reason, **change}


def ends(base: str, **more: Any) -> list[Operation]:
    """The named good input, a byte short and a byte long."""
    too_long = reject("left over", base, "length", append="00", **more)
    return [reject("cut", base, "length", cut=1, **more), too_long]


def patch(at: int, data: bytes) -> list[Any]:
    return [at, data]


def ids() -> list[Operation]:
    pk, hpke = pattern("host-key", 32), pattern("hpke", 1216)
    signed_bytes = pattern("task-bytes", 300)
    leader, part = pattern("party", 32), b"GPU-a"
    return [
        derive("host_id", host_id(pk), pk),
        derive("key_id", sha(hpke)[:8], hpke),
        derive("task_id", sha(label("plst1/task") + signed_bytes), signed_bytes),
        derive("hardware_id", sha(label("plst1/hardware") + leader + part)[:16], leader + part),
        derive("voucher_id", sha(label("plst1/voucher") + pk)[:16], pk),
        derive("label", label("plst1/k-mask"), b"plst1/k-mask"),
    ]


def derive(name: str, output: bytes, data: bytes) -> Operation:
    return {"name": name, "verdict": "derive", "input": data, "output": output}


def box() -> list[Operation]:
    """Keys of one host, epoch and task, and one report of five words under them."""
    k_h, k_l, eh, task_id = (pattern(name, 32) for name in ("k-h", "k-l", "eh", "task-id"))
    k_mask = expand(k_h, "plst1/k-mask", eh + task_id)
    k_id = expand(k_h, "plst1/k-id", eh + task_id)
    k_box = expand(k_l, "plst1/k-box", eh + task_id)
    report_id = pattern("report-id", 16)
    m = label("plst1/report") + big(3, 4) + big(5, 4) + big(1_700_000_040, 8) + report_id
    output = hmac.digest(k_id, m, "sha256")
    mask = key_stream(k_mask, output[16:28], 20)
    vector = [1, 1, 0, 2**32 - 5, 77]
    pads = [int.from_bytes(mask[at : at + 4], "little") for at in range(0, 20, 4)]
    y = words([(x + pad) % 2**32 for x, pad in zip(vector, pads, strict=True)])
    sealed = gcm(k_box, report_id[:12], m + output[:16], y)
    return [
        derive("k_mask", k_mask, k_h + eh + task_id),
        derive("k_id", k_id, k_h + eh + task_id),
        derive("k_box", k_box, k_l + eh + task_id),
        derive("tag_h and nonce", output[:28], k_id + m),
        derive("mask of five words", mask, k_mask + output[16:28]),
        derive("box", sealed, k_box + report_id + m + output[:16] + y),
        derive("open", y, k_box + report_id + m + output[:16] + sealed),
    ]


def signed_message() -> list[Operation]:
    body = pattern("body", 40)
    data = signed("plst1/task", body, SIG_L, SIG_H)
    fields = {"body": body, "sig_leader": SIG_L, "sig_helper": SIG_H}
    return [
        accept("task", data, fields, unsigned=data[:-128]),
        reject("left over", "task", "length", append="00"),
        reject("cut", "task", "length", cut=1),
        reject("too short", "task", "length", cut=41),
        reject("body length", "task", "length", patch=patch(16, big(41, 4))),
        reject("huge body length", "task", "length", patch=patch(16, b"\xff" * 4)),
        reject("a roster", "task", "version", patch=patch(0, label("plst1/roster"))),
        reject("version 2", "task", "version", patch=patch(4, b"2")),
    ]


def key_announcement() -> list[Operation]:
    hpke, times = pattern("hpke", 1216), ((1_700_000_000, 8), (1_700_086_400, 8))
    keys = {"party_pk": pattern("party", 32), "hpke_pk": hpke}
    data, fields = laid(
        "plst1/hpke-key", **keys, not_before=times[0], not_after=times[1], signature=SIG_L
    )
    return [
        accept("a day", data, fields | {"key_id": sha(hpke)[:8]}, unsigned=data[:-64]),
        *ends("a day"),
        reject("label", "a day", "version", patch=patch(6, b"X")),
        reject("empty interval", "a day", "key_interval", patch=patch(1272, big(*times[0]))),
        reject("time too large", "a day", "field", patch=patch(1272, b"\x00\x01" + bytes(6))),
    ]


def epoch() -> list[Operation]:
    begin, end = (1_700_000_000, 8), (1_700_003_900, 8)
    header, fields = laid(
        "plst1/epoch", host_id=host_id(pattern("host-key", 32)), epoch_id=pattern("epoch-id", 16),
        not_before=begin, not_after=end, helper_kid=pattern("helper-kid", 8),
        leader_kid=pattern("leader-kid", 8), roster_ver=(7, 8), ledger_ctr=(99, 8),
    )  # fmt: skip
    seal_h, seal_l = pattern("seal-h", 1168), pattern("seal-l", 1168)
    tail = big(1168, 2) + seal_l + SIG_L
    masked = header + big(1168, 2) + seal_h + tail
    local = header[:64] + bytes(8) + header[72:] + big(0, 2) + tail
    seal = {"seal_l": seal_l, "signature": SIG_L}
    whole = {"header": header, "unsigned": masked[:-64], "hash": sha(masked[:-64])}
    none = {"seal_h": "", "helper_kid": bytes(8), "scheme": "local"}
    return [
        accept("masked", masked, fields | seal | {"seal_h": seal_h, "scheme": "masked"}, **whole),
        accept("local", local, fields | seal | none),
        *ends("masked"),
        reject("label", "masked", "version", patch=patch(0, label("plst1/report"))),
        reject("seal_H length 80", "masked", "length", patch=patch(96, big(80, 2))),
        reject("seal_L length 1169", "masked", "length", patch=patch(1266, big(1169, 2))),
        reject("3901 s", "masked", "epoch_interval", patch=patch(56, big(1_700_003_901, 8))),
        reject("empty", "masked", "epoch_interval", patch=patch(56, big(*begin))),
        reject("time too large", "masked", "field", patch=patch(48, b"\xff" * 16)),
        reject("helper_kid zero", "masked", "field", patch=patch(64, bytes(8))),
        reject("local with helper_kid", "local", "field", patch=patch(64, b"\1")),
        reject("counter too large", "masked", "field", patch=patch(88, b"\xff")),
    ]


def report() -> list[Operation]:
    names = {"epoch_id": pattern("epoch-id", 16), "task_id": pattern("task-id", 32)}
    ident, whose = laid("", host_id=pattern("host", 16), **names)
    m, head = laid(
        "plst1/report", cohort=(3, 4), d=(5, 4), window=(1_700_000_040, 8),
        report_id=pattern("report-id", 16),
    )  # fmt: skip
    masked = ident + m + pattern("tag", 16) + pattern("box", 36)
    local = ident + m + bytes(16) + pattern("box", 56)
    fields = whose | head
    boxed = {"tag_h": pattern("tag", 16), "box": masked[128:], "scheme": "masked"}
    plain = {"tag_h": bytes(16), "box": local[128:], "scheme": "local"}
    return [
        accept("masked", masked, fields | boxed, header=m),
        accept("local", local, fields | plain, header=m),
        *ends("masked"),
        reject("too short", "masked", "length", cut=9),
        reject("d 2", "masked", "field", patch=patch(84, big(2, 4))),
        reject("d 6 in a box of 5", "masked", "length", patch=patch(84, big(6, 4))),
        reject("d above 2^20", "masked", "field", patch=patch(84, big((1 << 20) + 1, 4))),
        reject("little-endian d", "masked", "field", patch=patch(84, b"\5\0\0\0")),
        reject("an epoch's label", "masked", "version", patch=patch(64, label("plst1/epoch"))),
        reject("label padded with spaces", "masked", "version", patch=patch(76, b"    ")),
        reject("window too large", "masked", "field", patch=patch(88, b"\xff")),
        reject("local with a tag", "local", "field", patch=patch(127, b"\1")),
    ]


def batch() -> list[Operation]:
    hosts = sorted(pattern(f"host-{i}", 16) for i in range(3))
    rows = [host + pattern(f"row-{i}", 56) for i, host in enumerate(hosts)]
    head, fields = laid(
        "plst1/batch", task_id=pattern("task-id", 32), cohort=(3, 4), window=(600, 8),
        roster_ver=(7, 8),
    )  # fmt: skip
    data = head + big(3, 4) + b"".join(rows) + SIG_L
    fields["host_id"] = hosts
    columns = ("epoch_id", 16, 32), ("report_id", 32, 48), ("tag_h", 48, 64), ("check", 64, 72)
    for name, low, high in columns:
        fields[name] = [row[low:high] for row in rows]
    more = {"unsigned": data[:-64], "hash": sha(data[:-64])}
    return [
        accept("three hosts", data, fields, **more),
        *ends("three hosts"),
        reject("head alone", "three hosts", "length", cut=217),
        reject("n 2", "three hosts", "length", patch=patch(68, big(2, 4))),
        reject("n 0", "three hosts", "field", patch=patch(68, big(0, 4))),
        reject("n above 2^20", "three hosts", "field", patch=patch(68, b"\xff" * 4)),
        reject("one host twice", "three hosts", "order", patch=patch(144, hosts[0])),
        reject("falling", "three hosts", "order", patch=patch(72, b"\xff" * 16)),
        reject(
            "equal but the last byte", "three hosts", "order", patch=patch(72, _above(hosts[1]))
        ),
        reject("label", "three hosts", "version", patch=patch(0, label("plst1/share"))),
        reject("window too large", "three hosts", "field", patch=patch(52, b"\xff")),
        reject("roster too large", "three hosts", "field", patch=patch(60, b"\xff")),
    ]


def _above(host: bytes) -> bytes:
    return (int.from_bytes(host, "big") + 1).to_bytes(16, "big")


def share() -> list[Operation]:
    vector = [0, 1, 2**32 - 1, 0x01020304]
    head = label("plst1/share") + pattern("bh", 32) + big(3, 4)
    data = head + bytes([0b10000001, 0b00000010]) + words(vector) + SIG_H
    fields = {
        "batch_hash": pattern("bh", 32),
        "accepted": [1, 0, 0, 0, 0, 0, 0, 1, 0, 1],
        "vector": vector,
        "signature": SIG_H,
    }
    shape = {"n": 10, "d": 4}
    more = {"unsigned": data[:-64], "hash": sha(data[:-64])}
    return [
        accept("ten hosts", data, fields, **shape, **more),
        *ends("ten hosts", **shape),
        reject("another d", "ten hosts", "length", n=10, d=5),
        reject("another n", "ten hosts", "length", n=17, d=4),
        reject("padding bit", "ten hosts", "padding", patch=patch(53, b"\x06"), **shape),
        reject("n_acc 4", "ten hosts", "field", patch=patch(48, big(4, 4)), **shape),
        reject("bit lost", "ten hosts", "field", patch=patch(52, b"\x01"), **shape),
        reject("label", "ten hosts", "version", patch=patch(0, label("plst1/batch")), **shape),
    ]


def release() -> list[Operation]:
    hashes = {"prev": pattern("prev", 32), "batch_hash": pattern("bh", 32)}
    hashes |= {
        "share_hash": pattern("share-hash", 32),
        "vector_hash": sha(words([3, 3, 2**32 - 5])),
    }
    data, fields = laid("plst1/release", **hashes, sig_leader=SIG_L, sig_helper=SIG_H)
    more = {"unsigned": data[:-128], "hash": sha(data[:-128])}
    return [
        accept("both signed", data, fields, vector=[3, 3, 2**32 - 5], **more),
        reject("cut", "both signed", "length", cut=64),
        reject("left over", "both signed", "length", append="00"),
        reject("label", "both signed", "version", patch=patch(0, label("plst1/roster"))),
    ]


_LINK, _LINK_FIELDS = laid(
    "plst1/link", helper_pk=pattern("helper", 32), sequence=(7, 8), prev=pattern("prev", 32),
    closed_s=(1_700_000_100, 8), kind=(1, 1), item=pattern("item", 32),
)  # fmt: skip
_PARTIES = {f"{name}_pk": pattern(name, 32) for name in ("witness", "helper")}
_PARTIES |= {"nonce": pattern("nonce", 32)}
_ASK = b"".join(_PARTIES.values())


def link() -> list[Operation]:
    first = _LINK[:48] + big(1, 8) + bytes(32) + _LINK[88:96] + b"\2" + _LINK[97:]
    first_fields = {**_LINK_FIELDS, "sequence": 1, "prev": bytes(32), "kind": 2}
    return [
        accept("an answer", _LINK, _LINK_FIELDS, hash=sha(_LINK)),
        accept("the first, a release", first, first_fields, hash=sha(first)),
        *ends("an answer"),
        reject("label", "an answer", "version", patch=patch(0, label("plst1/release"))),
        reject("sequence 0", "an answer", "field", patch=patch(48, big(0, 8))),
        reject("huge sequence", "an answer", "field", patch=patch(48, b"\xff" * 8)),
        reject("no prev", "an answer", "field", patch=patch(56, bytes(32))),
        reject("a link before the first", "the first, a release", "field", patch=patch(56, b"\1")),
        reject("huge time", "an answer", "field", patch=patch(88, b"\xff" * 8)),
        reject("kind 0", "an answer", "field", patch=patch(96, b"\0")),
        reject("kind 3", "an answer", "field", patch=patch(96, b"\3")),
    ]


def witness_ask() -> list[Operation]:
    bare = label("plst1/ask") + _ASK + SIG_H
    more = label("plst1/ask") + _ASK + _LINK + SIG_H
    fields = _PARTIES | {"signature": SIG_H}
    linked = fields | {"link": _LINK_FIELDS}
    return [
        accept("for the head", bare, fields, unsigned=bare[:-64]),
        accept("with a link", more, linked, unsigned=more[:-64]),
        reject("cut", "for the head", "length", cut=1),
        reject("left over", "with a link", "length", append="00"),
        reject("half a link", "with a link", "length", cut=60),
        reject("label", "for the head", "version", patch=patch(0, label("plst1/head"))),
        reject("another's link", "with a link", "field", patch=patch(128, b"\0")),
        reject("no link", "with a link", "version", patch=patch(112, label("plst1/ask"))),
    ]


def witness_head() -> list[Operation]:
    head = big(7, 8) + pattern("head", 32) + big(1_700_000_100, 8)
    data = label("plst1/head") + _ASK + head + SIG_L
    told = {"sequence": 7, "hash": pattern("head", 32), "closed_s": 1_700_000_100}
    fields = _PARTIES | {"head": told, "signature": SIG_L}
    return [
        accept("good", data, fields, unsigned=data[:-64]),
        *ends("good"),
        reject("label", "good", "version", patch=patch(0, label("plst1/ask"))),
        reject("huge sequence", "good", "field", patch=patch(112, b"\xff" * 8)),
        reject("huge time", "good", "field", patch=patch(152, b"\xff" * 8)),
    ]


def envelope() -> list[Operation]:
    core = pattern("core", 200)
    data = number(1, 6) + blob(2, core)
    return [
        accept("a report", data, {"kind": 6, "core": core}),
        reject("too long", "a report", "length", max_len=len(data) - 1),
        reject("cut", "a report", "envelope", cut=1),
        reject("unknown field", "a report", "envelope", append="1801"),
        reject("a second core", "a report", "envelope", append="120100"),
        reject("kind 0", "a report", "envelope", patch=patch(1, b"\0")),
        reject("kind 11", "a report", "envelope", patch=patch(1, b"\x0b")),
        reject("core first", "a report", "envelope", patch=patch(0, data[2:] + data[:2])),
    ]


_MESSAGES = (
    ids, box, key_announcement, epoch, report, batch, share, release, link, witness_ask,
    witness_head, envelope, task, roster, voucher, join_request, padded_join, sealed_join,
    entry_answer,
)  # fmt: skip
FILES = {"signed": signed_message, **{message.__name__: message for message in _MESSAGES}}


def text(name: str) -> str:
    """Return one file's content."""
    content = {"message": name, "version": "plst1", "operations": FILES[name]()}
    return json.dumps(content, indent=1, default=bytes.hex) + "\n"


def main() -> int:
    """Write or compare every file; 1 when one differs."""
    differs = []
    for name in FILES:
        path = FOLDER / f"{name}.json"
        if "--check" not in sys.argv[1:]:
            path.write_text(text(name))
        elif not path.is_file() or path.read_text() != text(name):
            differs.append(path.name)
    if differs:
        print("differ from what scripts.make_vectors writes:", ", ".join(differs))
    return int(bool(differs))


if __name__ == "__main__":
    sys.exit(main())
