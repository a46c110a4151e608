"""Who takes part: the roster, a host's request to join it, and the countersigned answer."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from . import bounds, labels
from .bounds import (
    MAX_COUNTER,
    MAX_HOSTS,
    MAX_JOIN_BODY,
    MAX_ROSTER_BODY,
    MAX_TIME,
    need_label,
    need_length,
    need_range,
)
from .ids import NO_SIGNATURE, HostId, hardware_hash, host_id
from .proto import pointillist_pb2 as pb
from .rejection import Reason, ReportRejected

MAX_PLANS: Final = 1 << 16
MAX_SERIES: Final = 64
MAX_MODELS: Final = 64
MAX_GPUS: Final = 1 << 10
MAX_HARDWARE_IDS: Final = 64
TOKEN_BYTES: Final = range(16, 65)
_HEAD = struct.Struct(">16sI")

GpuModels = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class PlanMembership:
    """A host's part in one series: its cohort, and the share of its budget for the series."""

    series: str
    cohort: int
    weight_millionths: int


Plan = tuple[PlanMembership, ...]


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """One host.

    plan           index into the roster's plans
    gpu_models     (place in the catalogue's gpu_model table, GPUs), places rising
    hardware_hash  `ids.hardware_hash` of its GPU UUIDs and TPM: one roster id per machine
    """

    host_id: HostId
    ed25519_pk: bytes
    operator: str
    plan: int
    gpu_models: GpuModels
    hardware_hash: bytes

    @property
    def gpus(self) -> int:
        return sum(count for _, count in self.gpu_models)


@dataclass(frozen=True, slots=True)
class Roster:
    """The body of a signed roster: hosts by strictly rising id; effective_from in seconds."""

    version: int
    effective_from: int
    plans: tuple[Plan, ...]
    entries: tuple[RosterEntry, ...]

    def encode_body(self) -> bytes:
        """Return the body's bytes, the entries by rising host_id."""
        ordered = sorted(self.entries, key=lambda entry: entry.host_id)
        message = pb.RosterBody(
            version=self.version,
            effective_from=self.effective_from,
            plans=[_encode_plan(plan) for plan in self.plans],
            entries=[_encode_entry(entry) for entry in ordered],
        )
        return message.SerializeToString(deterministic=True)

    @classmethod
    def decode_body(cls, data: bytes) -> Self:
        """Decode a body whose signatures were verified; ReportRejected when out of range."""
        message = bounds.parse(pb.RosterBody(), data, MAX_ROSTER_BODY, "a roster body")
        need_range(message.version, 1, MAX_COUNTER, "version")
        need_range(message.effective_from, 0, MAX_TIME, "effective_from")
        need_range(len(message.plans), 0, MAX_PLANS, "plans")
        need_range(len(message.entries), 0, MAX_HOSTS, "hosts")
        plans = tuple(_decode_plan(plan) for plan in message.plans)
        entries = tuple(_decode_entry(entry, len(plans)) for entry in message.entries)
        _need_rising([entry.host_id for entry in entries])
        machines = {entry.hardware_hash for entry in entries}
        bounds.need(len(machines) == len(entries), "each hardware_hash once", "one twice")
        return cls(message.version, message.effective_from, plans, entries)


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A host asks to be enrolled: label16 || u32 len || body || Ed25519 of its own key.

    hardware_ids  GPU UUIDs, TPM; text of 1 to 128 characters
    token         16 to 64 bytes, one use
    """

    ed25519_pk: bytes
    hardware_ids: tuple[str, ...] = field(repr=False)
    token: bytes = field(repr=False)
    gpu_models: GpuModels
    signature: bytes = NO_SIGNATURE

    @property
    def hardware_hash(self) -> bytes:
        return hardware_hash(self.hardware_ids)

    def unsigned(self) -> bytes:
        """Return what the host signs."""
        message = pb.JoinBody(
            ed25519_pk=self.ed25519_pk,
            hardware_ids=self.hardware_ids,
            token=self.token,
            gpu_models=_encode_gpus(self.gpu_models),
        )
        encoded = message.SerializeToString(deterministic=True)
        return _HEAD.pack(labels.JOIN, len(encoded)) + encoded

    def encode(self) -> bytes:
        return self.unsigned() + self.signature

    def hash(self) -> bytes:
        """Return the SHA-256 of the request as sent, which its answer names."""
        return hashlib.sha256(self.encode()).digest()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if not _HEAD.size + 64 <= len(data) <= _HEAD.size + MAX_JOIN_BODY + 64:
            raise ReportRejected(Reason.LENGTH, "a join request of at most 16,468 bytes", len(data))
        got, length = _HEAD.unpack_from(data)
        need_label(got, labels.JOIN)
        need_length(data, _HEAD.size + length + 64, "a join request")
        inner = data[_HEAD.size : -64]
        message = bounds.parse(pb.JoinBody(), inner, MAX_JOIN_BODY, "a join body")
        bounds.need_bytes(message.ed25519_pk, 32, "ed25519_pk")
        need_range(len(message.token), TOKEN_BYTES.start, TOKEN_BYTES.stop - 1, "token bytes")
        names = tuple(message.hardware_ids)
        need_range(len(names), 1, MAX_HARDWARE_IDS, "hardware_ids")
        bounds.need(len(set(names)) == len(names), "each hardware id once", "one twice")
        for name in names:
            need_range(len(name), 1, 128, "characters of a hardware id")
        gpus = _decode_gpus(message.gpu_models)
        request = cls(message.ed25519_pk, names, message.token, gpus, data[-64:])
        # The signature covers the bytes as received; only their canonical form is one request.
        bounds.need(request.unsigned() == data[:-64], "a canonical join body", "another encoding")
        return request


@dataclass(frozen=True, slots=True)
class EntryAnswer:
    """The body of the answer to a join request, in a `Signed` of label ENTRY_ANSWER.

    request_hash  `JoinRequest.hash()`
    plan          the memberships of the host; entry.plan is 0 here, the only plan named
    """

    request_hash: bytes
    roster_version: int
    effective_from: int
    entry: RosterEntry
    plan: Plan

    def encode_body(self) -> bytes:
        message = pb.EntryBody(
            request_hash=self.request_hash,
            roster_version=self.roster_version,
            effective_from=self.effective_from,
            entry=_encode_entry(self.entry),
            plan=_encode_plan(self.plan),
        )
        return message.SerializeToString(deterministic=True)

    @classmethod
    def decode_body(cls, data: bytes) -> Self:
        """Decode a body whose signatures were verified; ReportRejected when out of range."""
        message = bounds.parse(pb.EntryBody(), data, MAX_JOIN_BODY, "an entry answer")
        return cls(
            bounds.need_bytes(message.request_hash, 32, "request_hash"),
            need_range(message.roster_version, 1, MAX_COUNTER, "roster_version"),
            need_range(message.effective_from, 0, MAX_TIME, "effective_from"),
            _decode_entry(message.entry, 1),
            _decode_plan(message.plan),
        )


def _encode_plan(plan: Plan) -> pb.Plan:
    return pb.Plan(
        memberships=[
            pb.PlanMembership(
                series=membership.series,
                cohort=membership.cohort,
                weight_millionths=membership.weight_millionths,
            )
            for membership in plan
        ]
    )


def _decode_plan(message: pb.Plan) -> Plan:
    need_range(len(message.memberships), 1, MAX_SERIES, "series of a plan")
    plan = tuple(
        PlanMembership(
            bounds.need_name(membership.series, "a series"),
            membership.cohort,
            need_range(membership.weight_millionths, 1, bounds.MILLION, "weight_millionths"),
        )
        for membership in message.memberships
    )
    bounds.need(
        len({membership.series for membership in plan}) == len(plan),
        "each series once",
        "one twice",
    )
    total = sum(membership.weight_millionths for membership in plan)
    need_range(total, 1, bounds.MILLION, "the sum of a plan's weight_millionths")
    return plan


def _encode_gpus(gpu_models: GpuModels) -> list[pb.GpuCount]:
    return [pb.GpuCount(model_index=model, count=count) for model, count in gpu_models]


def _decode_gpus(message: Sequence[pb.GpuCount]) -> GpuModels:
    need_range(len(message), 0, MAX_MODELS, "GPU models of a host")
    gpus = tuple((pair.model_index, pair.count) for pair in message)
    last = -1
    for model, count in gpus:
        need_range(model, last + 1, MAX_MODELS - 1, "model_index, rising")
        need_range(count, 1, MAX_GPUS, "GPUs of one model")
        last = model
    return gpus


def _encode_entry(entry: RosterEntry) -> pb.RosterEntry:
    return pb.RosterEntry(
        ed25519_pk=entry.ed25519_pk,
        operator=entry.operator,
        plan=entry.plan,
        gpu_models=_encode_gpus(entry.gpu_models),
        hardware_hash=entry.hardware_hash,
    )


def _decode_entry(message: pb.RosterEntry, plans: int) -> RosterEntry:
    key = bounds.need_bytes(message.ed25519_pk, 32, "ed25519_pk")
    return RosterEntry(
        host_id(key),
        key,
        bounds.need_name(message.operator, "an operator"),
        need_range(message.plan, 0, plans - 1, "plan"),
        _decode_gpus(message.gpu_models),
        bounds.need_bytes(message.hardware_hash, 32, "hardware_hash"),
    )


def _need_rising(hosts: Iterable[HostId]) -> None:
    last = b""
    for host in hosts:
        if host <= last:
            raise ReportRejected(Reason.ORDER, "host_id strictly increasing", "another order")
        last = host
