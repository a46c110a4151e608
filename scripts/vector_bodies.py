"""A second, plain writer of every layout, and vectors of protobuf bodies, joining among them.

It concatenates only, and imports nothing from `wire`: known-answer vectors made by the encoder
under test would agree with any mistake it makes. A bad body is given in full: one field of the good
one changed.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM

Operation = dict[str, Any]
Fields = dict[str, Any]
_OF_SECTION = (
    "section_id", "name", "kind", "length", "coordinate_cap", "l1_bound", "m", "q",
    "weight_millionths", "rate_millionths", "sigma_1024",
)  # fmt: skip
_SECTIONS: list[Fields] = [
    dict(zip(_OF_SECTION, values, strict=True))
    for values in (
        (1, "kernel_mix", "mix", 4, 480_000, 480_000, 0, 7_500, 600_000, 1_000_000, 632_770),
        (15, "incidents", "indicators", 3, 64, 128, 2, 1, 400_000, 1_000_000, 99_999),
    )
]
_WORDS = {"mix": 1, "histogram": 2, "mean": 3, "indicators": 4, "masked": 1, "local": 2}
_WORDED = {"kind", "scheme"}


def pattern(name: str, length: int) -> bytes:
    """Return fixed bytes that look random: SHA-256 over the name and a counter."""
    blocks = (length + 31) // 32
    stream = b"".join(hashlib.sha256(f"{name}/{i}".encode()).digest() for i in range(blocks))
    return stream[:length]


def sha(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()


def label(text: str) -> bytes:
    return text.encode() + bytes(16 - len(text))


def big(value: int, width: int) -> bytes:
    return value.to_bytes(width, "big")


def expand(key: bytes, name: str, context: bytes) -> bytes:
    """HKDF-Expand to 32 bytes, which is one HMAC."""
    return hmac.digest(key, label(name) + context + b"\x01", "sha256")


def key_stream(key: bytes, nonce: bytes, length: int) -> bytes:
    return Cipher(AES256(key), CTR(nonce + bytes(4))).encryptor().update(bytes(length))


def gcm(key: bytes, nonce: bytes, aad: bytes, plaintext: bytes) -> bytes:
    """AES-256-GCM: ciphertext and tag."""
    encryptor = Cipher(AES256(key), GCM(nonce)).encryptor()
    encryptor.authenticate_additional_data(aad)
    return encryptor.update(plaintext) + encryptor.finalize() + encryptor.tag


def words(values: list[int]) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)


def host_id(public_key: bytes) -> bytes:
    return sha(label("plst1/host") + public_key)[:16]


def signed(name: str, body: bytes, sig_leader: bytes, sig_helper: bytes) -> bytes:
    return label(name) + big(len(body), 4) + body + sig_leader + sig_helper


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    """A protobuf varint field; proto3 leaves zeros out."""
    return varint(field * 8) + varint(value) if value else b""


def blob(field: int, value: bytes) -> bytes:
    """A protobuf bytes, string or message field."""
    return varint(field * 8 + 2) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    return blob(field, value.encode())


def numbers(fields: dict[int, int]) -> bytes:
    return b"".join(number(field, value) for field, value in fields.items())


_TASK: Fields = {
    "series": "minute", "version": 3, "domain": "fleet", "scheme": "masked",
    "first_window": 1_700_000_040, "last_window": 1_700_000_100, "window_s": 60,
    "lateness_s": 30, "retention_s": 21_600, "sections": _SECTIONS,
    "epsilon_millionths": 2_000_000, "delta_1e12": 1_000, "mu_1e9": 351_549_815,
    "n_max": 12_500, "n_min": 10_000, "t": 1_250, "min_operators": 3,
    "leader_pk": pattern("leader-pk", 32), "helper_pk": pattern("helper-pk", 32),
    "catalogue_hash": pattern("catalogue", 32), "expiry": 1_800_000_000,
}  # fmt: skip


def _body(fields: Fields) -> bytes:
    """Write fields by their number, which is their place."""
    out = b""
    for field, (name, value) in enumerate(fields.items(), start=1):
        if isinstance(value, list):
            out += b"".join(blob(field, _body(section)) for section in value)
        elif isinstance(value, bytes):
            out += blob(field, value) if value else b""
        elif isinstance(value, str):
            out += number(field, _WORDS[value]) if name in _WORDED else text(field, value)
        else:
            out += number(field, value)
    return out


def good(name: str, data: bytes, fields: Fields, **more: Any) -> Operation:
    return {"name": name, "verdict": "accept", "input": data, "fields": fields, **more}


def bad(name: str, data: bytes, reason: str = "field") -> Operation:
    return {"name": name, "verdict": "reject", "reason": reason, "input": data}


def _ends(data: bytes) -> list[Operation]:
    return [bad("cut", data[:-1], "length"), bad("left over", data + b"\0", "length")]


def _bad_task(name: str, **change: Any) -> Operation:
    return bad(name, _body(_TASK | change))


def _bad_section(name: str, at: int = 0, **change: Any) -> Operation:
    sections = list(_SECTIONS)
    sections[at] = sections[at] | change
    return _bad_task(f"section: {name}", sections=sections)


def task() -> list[Operation]:
    local = _TASK | {"scheme": "local", "helper_pk": b""}
    return [
        good("masked", _body(_TASK), _TASK, d=9),
        good("local", _body(local), local, d=9),
        bad("empty", b""),
        bad("no protobuf", b"\xff" * 40),
        bad("unknown field", _body(_TASK) + number(22, 1)),
        bad("unknown field of a section", _body(_TASK) + blob(10, number(12, 1))),
        _bad_task("series with a slash", series="a/b"),
        _bad_task("series of 64 characters", series="x" * 64),
        _bad_task("no domain", domain=""),
        _bad_task("version 0", version=0),
        _bad_task("scheme 3", scheme=3),
        _bad_task("last before first", last_window=1_699_999_980),
        _bad_task("first window off the grid", first_window=1_700_000_041),
        _bad_task("window_s 0", window_s=0),
        _bad_task("lateness above retention", lateness_s=21_601),
        _bad_task("no sections", sections=[]),
        _bad_task("sections share a name", sections=[_SECTIONS[0], _SECTIONS[0]]),
        _bad_task("n_min above n_max", n_min=12_501),
        _bad_task("t = n_min", t=10_000),
        _bad_task("operators above n_max", min_operators=12_501),
        _bad_task("epsilon 0", epsilon_millionths=0),
        _bad_task("delta 0", delta_1e12=0),
        _bad_task("mu 0", mu_1e9=0),
        _bad_task("short leader key", leader_pk=bytes(31)),
        _bad_task("masked without Helper", helper_pk=b""),
        _bad_task("local with Helper", scheme="local"),
        _bad_task("no catalogue", catalogue_hash=b""),
        _bad_task("no expiry", expiry=0),
        _bad_task("milliseconds for seconds", last_window=1_700_000_100_000 // 60 * 60),
        _bad_section("q 0", q=0),
        _bad_section("cap no multiple of q", coordinate_cap=7_501),
        _bad_section("cap above bound", coordinate_cap=487_500),
        _bad_section("kind 5", kind=5),
        _bad_section("m of a mix", m=1),
        _bad_section("m above length", at=1, m=4, l1_bound=256),
        _bad_section("bound not m caps", at=1, l1_bound=192),
        _bad_section("weights above 1", weight_millionths=600_001),
        _bad_section("weight 0", weight_millionths=0),
        _bad_section("rate above 1", rate_millionths=1_000_001),
        _bad_section("sigma 0", sigma_1024=0),
        _bad_section("d above 2^20", length=1 << 20),
    ]


KEYS = sorted((pattern(f"key-{i}", 32) for i in range(3)), key=host_id)
GPUS = [[2, 8]]


def gpu_bytes(field: int, gpus: list[list[int]]) -> bytes:
    return b"".join(blob(field, numbers({1: model, 2: count})) for model, count in gpus)


def _entry_bytes(
    key: bytes, plan: int, operator: str = "op-1", parts: bytes = b"", voucher: bytes = b""
) -> bytes:
    middle = text(2, operator) + number(3, plan) + gpu_bytes(4, GPUS)
    tail = blob(5, parts or _hardware(key)) + blob(6, voucher or pattern(f"v-{key.hex()}", 16))
    return blob(1, key) + middle + tail


def _hardware(key: bytes) -> bytes:
    return b"".join(sorted(pattern(f"hardware-{key.hex()}-{part}", 16) for part in range(2)))


def _entry_fields(key: bytes, plan: int) -> dict[str, Any]:
    return {
        "host_id": host_id(key),
        "ed25519_pk": key,
        "operator": "op-1",
        "plan": plan,
        "gpu_models": GPUS,
        "hardware": _hardware(key),
        "voucher_id": pattern(f"v-{key.hex()}", 16),
    }


_PLANS = [[["minute", 1, 600_000], ["week", 1, 100_000]], [["minute", 2, 420_000]]]


def _plan_bytes(plan: list[list[Any]]) -> bytes:
    members = (text(1, series) + numbers({2: cohort, 3: w}) for series, cohort, w in plan)
    return b"".join(blob(1, member) for member in members)


def _roster_bytes(entries: list[bytes], plans: list[Any] | None = None, version: int = 7) -> bytes:
    head = numbers({1: version, 2: 1_700_000_000})
    middle = b"".join(blob(3, _plan_bytes(plan)) for plan in plans or _PLANS)
    return head + middle + b"".join(blob(4, entry) for entry in entries)


_FLEET = {"leader_pk": pattern("party", 32), "helper_pk": pattern("helper", 32), "name": "acme-1"}


def _fleet_bytes(**changes: Any) -> bytes:
    named = _FLEET | changes
    keys = blob(1, named["leader_pk"]) + blob(2, named["helper_pk"])
    return blob(5, keys + text(3, named["name"]))


def roster() -> list[Operation]:
    entries = [_entry_bytes(key, i % 2) for i, key in enumerate(KEYS)]
    whole = _roster_bytes(entries)
    fields = {
        "version": 7,
        "effective_from": 1_700_000_000,
        "plans": _PLANS,
        "entries": [_entry_fields(key, i % 2) for i, key in enumerate(KEYS)],
    }
    part = _hardware(KEYS[0])[:16]
    shared = [_entry_bytes(KEYS[0], 0), _entry_bytes(KEYS[1], 0, parts=part)]
    once = [_entry_bytes(key, 0, voucher=bytes(16)) for key in KEYS[:2]]
    falling = _hardware(KEYS[0])[16:] + part
    heavy = [[["minute", 1, 600_000], ["week", 1, 400_001]]]
    return [
        good("three hosts", whole, fields),
        good("three hosts of a named fleet", whole + _fleet_bytes(), fields | {"fleet": _FLEET}),
        bad("short key of the Leader", whole + _fleet_bytes(leader_pk=b"\1" * 31)),
        bad("short key of the Helper", whole + _fleet_bytes(helper_pk=b"\1" * 31)),
        bad("one key in both roles", whole + _fleet_bytes(helper_pk=_FLEET["leader_pk"])),
        bad("fleet without a name", whole + _fleet_bytes(name="")),
        bad("fleet of nothing", whole + blob(5, b"")),
        bad("unknown field of a fleet", whole + blob(5, _fleet_bytes()[2:] + number(4, 1))),
        bad("falling hosts", _roster_bytes(entries[::-1]), "order"),
        bad("one host twice", _roster_bytes([entries[0], entries[0]]), "order"),
        bad("one part of two machines", _roster_bytes(shared)),
        bad("one voucher of two hosts", _roster_bytes(once)),
        bad("parts falling", _roster_bytes([_entry_bytes(KEYS[0], 0, parts=falling)])),
        bad("half a part", _roster_bytes([_entry_bytes(KEYS[0], 0, parts=part + part[:8])])),
        bad("short voucher id", _roster_bytes([_entry_bytes(KEYS[0], 0, voucher=bytes(15))])),
        bad("version 0", _roster_bytes(entries, version=0)),
        bad("plan 2 of 2", _roster_bytes([_entry_bytes(KEYS[0], 2)])),
        bad("short key", _roster_bytes([_entry_bytes(b"\1" * 31, 0)])),
        bad("operator with a space", _roster_bytes([_entry_bytes(KEYS[0], 0, "op 1")])),
        bad("weights above 1", _roster_bytes(entries[:1], heavy)),
        bad("series twice", _roster_bytes(entries[:1], [[_PLANS[0][0], _PLANS[0][0]]])),
        bad("plan of nothing", _roster_bytes(entries[:1], [[]])),
        bad("unknown field", whole + number(6, 1)),
        bad("cut", whole[:-1]),
    ]


def _answer(request: bytes, entry: bytes, plan: list[list[Any]]) -> bytes:
    numbers_2_3 = numbers({2: 8, 3: 1_700_000_000})
    return blob(1, request) + numbers_2_3 + blob(4, entry) + blob(5, _plan_bytes(plan))


def entry_answer() -> list[Operation]:
    request, entry = pattern("request", 32), _entry_bytes(KEYS[0], 0)
    whole = _answer(request, entry, _PLANS[0])
    fields = {
        "request_hash": request,
        "roster_version": 8,
        "effective_from": 1_700_000_000,
        "entry": _entry_fields(KEYS[0], 0),
        "plan": _PLANS[0],
    }
    return [
        good("good", whole, fields),
        bad("short hash", _answer(request[:-1], entry, _PLANS[0])),
        bad("plan 1", _answer(request, _entry_bytes(KEYS[0], 1), _PLANS[0])),
        bad("no plan", blob(1, request) + numbers({2: 8}) + blob(4, entry)),
        bad("no entry", blob(1, request) + numbers({2: 8}) + blob(5, _plan_bytes(_PLANS[0]))),
        bad("unknown field", whole + number(6, 1)),
    ]


_LEADER, _TOKEN = pattern("party", 32), pattern("token-key", 32)
_SIGNED = pattern("sig-t", 64) + pattern("sig", 64)
_NOT_AFTER = 1_700_000_000
_PARTS = b"".join(sorted(pattern(f"part-{place}", 16) for place in range(9)))


def _voucher_body(operator: str = "op-1", plan: str = "fleet", token: bytes = _TOKEN) -> bytes:
    names = text(3, operator) + text(4, plan)
    return blob(1, _LEADER) + blob(2, token) + names + number(5, _NOT_AFTER)


def _voucher(body: bytes) -> bytes:
    return label("plst1/voucher") + big(len(body), 4) + body + pattern("sig-operator", 64)


def voucher() -> list[Operation]:
    whole = _voucher(_voucher_body())
    fields = {
        "leader_pk": _LEADER,
        "token_pk": _TOKEN,
        "operator": "op-1",
        "plan": "fleet",
        "not_after": _NOT_AFTER,
        "signature": pattern("sig-operator", 64),
        "voucher_id": sha(label("plst1/voucher") + _TOKEN)[:16],
    }
    body = _voucher_body()
    overlong = varint(10) + b"\xa0\x00" + body[2:]
    return [
        good("good", whole, fields, unsigned=whole[:-64]),
        *_ends(whole),
        bad("label", label("plst1/join") + whole[16:], "version"),
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
    return label("plst1/join") + big(len(body), 4) + body + _SIGNED


def join_request() -> list[Operation]:
    body = _join_body()
    whole = _join(body)
    fields = {"ed25519_pk": KEYS[0], "hardware": _PARTS, "gpu_models": GPUS}
    fields |= {"token_signature": pattern("sig-t", 64), "signature": pattern("sig", 64)}
    more = {"unsigned": whole[:-128], "hash": sha(whole)}
    many = b"".join(big(place, 16) for place in range(65))
    two_byte_length = label("plst1/join") + big(len(body) + 1, 4)
    overlong = varint(10) + b"\xa0\x00" + body[2:]
    return [
        good("good", whole, fields, **more),
        *_ends(whole),
        bad("label", label("plst1/task") + whole[16:], "version"),
        bad("no parts", _join(_join_body(b""))),
        bad("part twice", _join(_join_body(_PARTS[:16] * 2))),
        bad("parts falling", _join(_join_body(_PARTS[16:32] + _PARTS[:16]))),
        bad("65 parts", _join(_join_body(many))),
        bad("half a part", _join(_join_body(_PARTS[:24]))),
        bad("voucher cut", _join(_join_body(vouched=_voucher(_voucher_body())[:-1])), "length"),
        bad("models falling", _join(_join_body(gpus=[[3, 1], [2, 1]]))),
        bad("no GPUs of a model", _join(_join_body(gpus=[[3, 0]]))),
        bad("overlong varint", two_byte_length + overlong + _SIGNED),
        bad("unknown field", _join(body + number(5, 1))),
    ]


def padded_join() -> list[Operation]:
    request = _join(_join_body())
    whole = request.ljust(2048, b"\0")
    beyond = request[:16] + big(5000, 4) + request[20:]
    return [
        {"name": "good", "verdict": "padded", "input": whole, "request": request},
        *_ends(whole),
        bad("padding", whole[:-1] + b"\1", "padding"),
        bad("zeros", bytes(2048), "version"),
        bad("length beyond the end", beyond.ljust(2048, b"\0"), "length"),
    ]


def sealed_join() -> list[Operation]:
    kid, sealed = pattern("leader-kid", 8), pattern("sealed", 3184)
    whole = label("plst1/join-seal") + KEYS[0] + kid + sealed
    fields = {"ed25519_pk": KEYS[0], "leader_kid": kid, "sealed": sealed}
    return [
        good("good", whole, fields),
        *_ends(whole),
        bad("label", label("plst1/task") + whole[16:], "version"),
        bad("in clear", _join(_join_body()), "join_clear"),
    ]
