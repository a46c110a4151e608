"""Vectors of the protobuf bodies: task, roster, entry answer.

A bad body is given in full: one field of the good one changed.
"""

from __future__ import annotations

from typing import Any

from scripts.vector_bytes import (
    blob,
    host_id,
    number,
    numbers,
    pattern,
    text,
)

Operation = dict[str, Any]

_SECTIONS: list[dict[str, Any]] = [
    {
        "section_id": 1,
        "name": "kernel_mix",
        "kind": "mix",
        "length": 4,
        "coordinate_cap": 480_000,
        "l1_bound": 480_000,
        "m": 0,
        "q": 7_500,
        "weight_millionths": 600_000,
        "rate_millionths": 1_000_000,
        "sigma_1024": 632_770,
    },
    {
        "section_id": 15,
        "name": "incidents",
        "kind": "indicators",
        "length": 3,
        "coordinate_cap": 64,
        "l1_bound": 128,
        "m": 2,
        "q": 1,
        "weight_millionths": 400_000,
        "rate_millionths": 1_000_000,
        "sigma_1024": 99_999,
    },
]
_TASK: dict[str, Any] = {
    "series": "minute",
    "version": 3,
    "domain": "fleet",
    "scheme": "masked",
    "first_window": 1_700_000_040,
    "last_window": 1_700_000_100,
    "window_s": 60,
    "lateness_s": 30,
    "retention_s": 21_600,
    "sections": _SECTIONS,
    "epsilon_millionths": 2_000_000,
    "delta_1e12": 1_000,
    "mu_1e9": 351_549_815,
    "n_max": 12_500,
    "n_min": 10_000,
    "t": 1_250,
    "min_operators": 3,
    "leader_pk": pattern("leader-pk", 32).hex(),
    "helper_pk": pattern("helper-pk", 32).hex(),
    "catalogue_hash": pattern("catalogue", 32).hex(),
    "expiry": 1_800_000_000,
}
_KINDS = {"mix": 1, "histogram": 2, "mean": 3, "indicators": 4}
_SCHEMES = {"masked": 1, "local": 2}
_BYTES = {"leader_pk", "helper_pk", "catalogue_hash"}


def _section_bytes(section: dict[str, Any]) -> bytes:
    out = b""
    for field, (name, value) in enumerate(section.items(), start=1):
        if name == "name":
            out += text(field, value)
        else:
            out += number(field, _KINDS.get(value, value) if name == "kind" else value)
    return out


def _task_bytes(fields: dict[str, Any]) -> bytes:
    out = b""
    for field, (name, value) in enumerate(fields.items(), start=1):
        if name == "sections":
            out += b"".join(blob(field, _section_bytes(section)) for section in value)
        elif name in {"series", "domain"}:
            out += text(field, value)
        elif name in _BYTES:
            out += blob(field, bytes.fromhex(value)) if value else b""
        else:
            out += number(field, _SCHEMES.get(value, value) if name == "scheme" else value)
    return out


def bad(name: str, data: bytes, reason: str = "field") -> Operation:
    return {"name": name, "verdict": "reject", "reason": reason, "input": data.hex()}


def _bad_task(name: str, **change: Any) -> Operation:
    return bad(name, _task_bytes(_TASK | change))


def _bad_section(name: str, at: int = 0, **change: Any) -> Operation:
    sections = list(_SECTIONS)
    sections[at] = sections[at] | change
    return _bad_task(f"section: {name}", sections=sections)


def task() -> list[Operation]:
    good = _task_bytes(_TASK)
    local = _TASK | {"scheme": "local", "helper_pk": ""}
    return [
        {"name": "masked", "verdict": "accept", "input": good.hex(), "fields": _TASK, "d": 9},
        {
            "name": "local",
            "verdict": "accept",
            "input": _task_bytes(local).hex(),
            "fields": local,
            "d": 9,
        },
        bad("empty", b""),
        bad("no protobuf", b"\xff" * 40),
        bad("unknown field", good + number(22, 1)),
        bad("unknown field of a section", good + blob(10, number(12, 1))),
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
        _bad_task("short leader key", leader_pk="00" * 31),
        _bad_task("masked without Helper", helper_pk=""),
        _bad_task("local with Helper", scheme="local"),
        _bad_task("no catalogue", catalogue_hash=""),
        _bad_task("no expiry", expiry=0),
        _bad_task("time above 2^48", last_window=60 * (1 << 48)),
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
        "host_id": host_id(key).hex(),
        "ed25519_pk": key.hex(),
        "operator": "op-1",
        "plan": plan,
        "gpu_models": GPUS,
        "hardware": _hardware(key).hex(),
        "voucher_id": pattern(f"v-{key.hex()}", 16).hex(),
    }


_PLANS = [[["minute", 1, 600_000], ["week", 1, 100_000]], [["minute", 2, 420_000]]]


def _plan_bytes(plan: list[list[Any]]) -> bytes:
    members = (text(1, series) + numbers({2: cohort, 3: w}) for series, cohort, w in plan)
    return b"".join(blob(1, member) for member in members)


def _roster_bytes(entries: list[bytes], plans: list[Any] | None = None, version: int = 7) -> bytes:
    head = numbers({1: version, 2: 1_700_000_000})
    middle = b"".join(blob(3, _plan_bytes(plan)) for plan in plans or _PLANS)
    return head + middle + b"".join(blob(4, entry) for entry in entries)


def roster() -> list[Operation]:
    entries = [_entry_bytes(key, i % 2) for i, key in enumerate(KEYS)]
    good = _roster_bytes(entries)
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
        {"name": "three hosts", "verdict": "accept", "input": good.hex(), "fields": fields},
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
        bad("unknown field", good + number(5, 1)),
        bad("cut", good[:-1]),
    ]


def _answer(request: bytes, entry: bytes, plan: list[list[Any]]) -> bytes:
    numbers_2_3 = numbers({2: 8, 3: 1_700_000_000})
    return blob(1, request) + numbers_2_3 + blob(4, entry) + blob(5, _plan_bytes(plan))


def entry_answer() -> list[Operation]:
    request, entry = pattern("request", 32), _entry_bytes(KEYS[0], 0)
    good = _answer(request, entry, _PLANS[0])
    fields = {
        "request_hash": request.hex(),
        "roster_version": 8,
        "effective_from": 1_700_000_000,
        "entry": _entry_fields(KEYS[0], 0),
        "plan": _PLANS[0],
    }
    return [
        {"name": "good", "verdict": "accept", "input": good.hex(), "fields": fields},
        bad("short hash", _answer(request[:-1], entry, _PLANS[0])),
        bad("plan 1", _answer(request, _entry_bytes(KEYS[0], 1), _PLANS[0])),
        bad("no plan", blob(1, request) + numbers({2: 8}) + blob(4, entry)),
        bad("no entry", blob(1, request) + numbers({2: 8}) + blob(5, _plan_bytes(_PLANS[0]))),
        bad("unknown field", good + number(6, 1)),
    ]
