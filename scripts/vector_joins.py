"""Vectors of joining: voucher, join request, the request padded, the request sealed."""

from __future__ import annotations

from typing import Any

from scripts.vector_bodies import GPUS, KEYS, bad, gpu_bytes
from scripts.vector_bytes import big, blob, label, number, pattern, sha, text, varint

Operation = dict[str, Any]
_LEADER, _TOKEN = pattern("party", 32), pattern("token-key", 32)
_NOT_AFTER = 1_700_000_000
_PARTS = b"".join(sorted(pattern(f"part-{place}", 16) for place in range(9)))


def _voucher_body(operator: str = "op-1", plan: str = "fleet", token: bytes = _TOKEN) -> bytes:
    names = text(3, operator) + text(4, plan)
    return blob(1, _LEADER) + blob(2, token) + names + number(5, _NOT_AFTER)


def _voucher(body: bytes) -> bytes:
    return label("plst1/voucher") + big(len(body), 4) + body + pattern("sig-operator", 64)


def voucher() -> list[Operation]:
    good = _voucher(_voucher_body())
    fields = {
        "leader_pk": _LEADER.hex(),
        "token_pk": _TOKEN.hex(),
        "operator": "op-1",
        "plan": "fleet",
        "not_after": _NOT_AFTER,
        "signature": pattern("sig-operator", 64).hex(),
        "voucher_id": sha(label("plst1/voucher") + _TOKEN)[:16].hex(),
    }
    more = {"unsigned": good[:-64].hex()}
    body = _voucher_body()
    overlong = varint(10) + b"\xa0\x00" + body[2:]
    return [
        {"name": "good", "verdict": "accept", "input": good.hex(), "fields": fields, **more},
        bad("cut", good[:-1], "length"),
        bad("left over", good + b"\0", "length"),
        bad("label", label("plst1/join") + good[16:], "version"),
        bad("operator with a space", _voucher(_voucher_body("op 1"))),
        bad("no plan", _voucher(_voucher_body(plan=""))),
        bad("short token key", _voucher(_voucher_body(token=b"\1" * 31))),
        bad("time too large", _voucher(body + number(5, 1 << 48))),
        bad("unknown field", _voucher(body + number(6, 1))),
        bad("overlong varint", _voucher(overlong)),
    ]


def _join_body(
    parts: bytes = _PARTS, gpus: list[list[int]] | None = None, vouched: bytes = b""
) -> bytes:
    middle = blob(2, parts) + gpu_bytes(3, gpus or GPUS)
    return blob(1, KEYS[0]) + middle + blob(4, vouched or _voucher(_voucher_body()))


def _join(body: bytes) -> bytes:
    return (
        label("plst1/join") + big(len(body), 4) + body + pattern("sig-t", 64) + pattern("sig", 64)
    )


def _fields() -> dict[str, Any]:
    return {
        "ed25519_pk": KEYS[0].hex(),
        "hardware": _PARTS.hex(),
        "gpu_models": GPUS,
        "token_signature": pattern("sig-t", 64).hex(),
        "signature": pattern("sig", 64).hex(),
    }


def join_request() -> list[Operation]:
    body = _join_body()
    good = _join(body)
    more = {"unsigned": good[:-128].hex(), "hash": sha(good).hex()}
    many = b"".join(big(place, 16) for place in range(65))
    two_byte_length = label("plst1/join") + big(len(body) + 1, 4)
    overlong = varint(10) + b"\xa0\x00" + body[2:]
    signatures = pattern("sig-t", 64) + pattern("sig", 64)
    return [
        {"name": "good", "verdict": "accept", "input": good.hex(), "fields": _fields(), **more},
        bad("cut", good[:-1], "length"),
        bad("left over", good + b"\0", "length"),
        bad("label", label("plst1/task") + good[16:], "version"),
        bad("no parts", _join(_join_body(b""))),
        bad("part twice", _join(_join_body(_PARTS[:16] * 2))),
        bad("parts falling", _join(_join_body(_PARTS[16:32] + _PARTS[:16]))),
        bad("65 parts", _join(_join_body(many))),
        bad("half a part", _join(_join_body(_PARTS[:24]))),
        bad("voucher cut", _join(_join_body(vouched=_voucher(_voucher_body())[:-1])), "length"),
        bad("models falling", _join(_join_body(gpus=[[3, 1], [2, 1]]))),
        bad("no GPUs of a model", _join(_join_body(gpus=[[3, 0]]))),
        bad("overlong varint", two_byte_length + overlong + signatures),
        bad("unknown field", _join(body + number(5, 1))),
    ]


def padded_join() -> list[Operation]:
    request = _join(_join_body())
    good = request.ljust(2048, b"\0")
    beyond = request[:16] + big(5000, 4) + request[20:]
    return [
        {"name": "good", "verdict": "padded", "input": good.hex(), "request": request.hex()},
        bad("cut", good[:-1], "length"),
        bad("left over", good + b"\0", "length"),
        bad("padding", good[:-1] + b"\1", "padding"),
        bad("zeros", bytes(2048), "version"),
        bad("length beyond the end", beyond.ljust(2048, b"\0"), "length"),
    ]


def sealed_join() -> list[Operation]:
    kid, sealed = pattern("leader-kid", 8), pattern("sealed", 3184)
    good = label("plst1/join-seal") + KEYS[0] + kid + sealed
    fields = {"ed25519_pk": KEYS[0].hex(), "leader_kid": kid.hex(), "sealed": sealed.hex()}
    return [
        {"name": "good", "verdict": "accept", "input": good.hex(), "fields": fields},
        bad("cut", good[:-1], "length"),
        bad("left over", good + b"\0", "length"),
        bad("label", label("plst1/task") + good[16:], "version"),
        bad("in clear", _join(_join_body()), "join_clear"),
    ]
