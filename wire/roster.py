"""Who takes part in a fleet: the roster, and the countersigned answer to a request to join it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Final, Self

from . import fields
from .fields import MAX_COUNTER, HardwareId, HostId, VoucherId, host_id, need_range, need_time
from .proto import pointillist_pb2 as pb
from .rejection import Reason, ReportRejected

MAX_PLANS: Final = 1 << 16
MAX_SERIES: Final = 64
MAX_MODELS: Final = 64
MAX_GPUS: Final = 1 << 10
MAX_HARDWARE_IDS: Final = 64
HARDWARE_ID_BYTES: Final = 16

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

    plan        index into the roster's plans
    gpu_models  (place in the catalogue's gpu_model table, GPUs), places rising
    hardware    `ids.hardware_id` of its machine id and each GPU UUID, 16 B each, rising
    voucher_id  of the voucher that enrolled it: no other host has it
    """

    host_id: HostId
    ed25519_pk: bytes
    operator: str
    plan: int
    gpu_models: GpuModels
    hardware: bytes
    voucher_id: VoucherId

    @property
    def hardware_ids(self) -> tuple[HardwareId, ...]:
        return hardware_ids(self.hardware)

    @property
    def gpus(self) -> int:
        return sum(count for _, count in self.gpu_models)


@dataclass(frozen=True, slots=True)
class FleetName:
    """Whose roster it is: both parties' identity keys, and a name that tells fleets of the same two
    apart. helper_pk is empty in scheme `local`.
    """

    leader_pk: bytes
    helper_pk: bytes
    name: str


@dataclass(frozen=True, slots=True)
class Roster:
    """The body of a signed roster: hosts by strictly rising id; effective_from in seconds.

    fleet       None: signed before rosters named their fleet
    """

    version: int
    effective_from: int
    plans: tuple[Plan, ...]
    entries: tuple[RosterEntry, ...]
    fleet: FleetName | None = None

    def encode_body(self) -> bytes:
        """Return the body's bytes, the entries by rising host_id."""
        ordered = sorted(self.entries, key=lambda entry: entry.host_id)
        message = pb.RosterBody(
            version=self.version,
            effective_from=self.effective_from,
            plans=[_encode_plan(plan) for plan in self.plans],
            entries=[_encode_entry(entry) for entry in ordered],
            fleet=None if self.fleet is None else pb.FleetName(**asdict(self.fleet)),
        )
        return message.SerializeToString(deterministic=True)

    @classmethod
    def decode_body(cls, data: bytes) -> Self:
        """Decode a body whose signatures were verified; ReportRejected when out of range."""
        message = fields.parse(pb.RosterBody(), data, fields.MAX_ROSTER_BODY, "a roster body")
        need_range(message.version, 1, MAX_COUNTER, "version")
        need_time(message.effective_from, "effective_from")
        need_range(len(message.plans), 0, MAX_PLANS, "plans")
        need_range(len(message.entries), 0, fields.MAX_HOSTS, "hosts")
        plans = tuple(_decode_plan(plan) for plan in message.plans)
        entries = tuple(_decode_entry(entry, len(plans)) for entry in message.entries)
        if any(a.host_id >= b.host_id for a, b in pairwise(entries)):
            raise ReportRejected(Reason.ORDER, "host_id strictly increasing", "another order")
        _need_distinct(entries)
        fleet = _decode_fleet(message.fleet) if message.HasField("fleet") else None
        return cls(message.version, message.effective_from, plans, entries, fleet)

    def require_fleet(self, leader_pk: bytes, helper_pk: bytes, names: Collection[str]) -> None:
        """Refuse a roster of other parties, or of another fleet.

        names       that the fleet may have; none: any, and a roster that names no fleet
        Raises      ReportRejected: roster_fleet
        """
        if self.fleet is None:
            got = "one that names none"
        elif (self.fleet.leader_pk, self.fleet.helper_pk) != (leader_pk, helper_pk):
            expected = "a roster that names the two parties that signed it, each in its role"
            raise ReportRejected(Reason.ROSTER_FLEET, expected, "others")
        else:
            got = self.fleet.name
        if names and got not in names:
            expected = f"a roster of the fleet {' or '.join(sorted(names))}"
            raise ReportRejected(Reason.ROSTER_FLEET, expected, got)


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
        message = fields.parse(pb.EntryBody(), data, fields.MAX_ENTRY_BODY, "an entry answer")
        return cls(
            fields.need_bytes(message.request_hash, 32, "request_hash"),
            need_range(message.roster_version, 1, MAX_COUNTER, "roster_version"),
            need_time(message.effective_from, "effective_from"),
            _decode_entry(message.entry, 1),
            _decode_plan(message.plan),
        )


def _decode_fleet(message: pb.FleetName) -> FleetName:
    if message.helper_pk:
        fields.need_bytes(message.helper_pk, 32, "helper_pk")
    leader_pk = fields.need_bytes(message.leader_pk, 32, "leader_pk")
    fields.need(leader_pk != message.helper_pk, "two parties", "one key in both roles")
    name = fields.need_name(message.name, "a fleet's name")
    return FleetName(leader_pk, message.helper_pk, name)


def _encode_plan(plan: Plan) -> pb.Plan:
    return pb.Plan(memberships=[pb.PlanMembership(**asdict(one)) for one in plan])


def _decode_plan(message: pb.Plan) -> Plan:
    need_range(len(message.memberships), 1, MAX_SERIES, "series of a plan")
    plan = tuple(
        PlanMembership(
            fields.need_name(membership.series, "a series"),
            membership.cohort,
            need_range(membership.weight_millionths, 1, fields.MILLION, "weight_millionths"),
        )
        for membership in message.memberships
    )
    once = len({membership.series for membership in plan}) == len(plan)
    fields.need(once, "each series once", "one twice")
    total = sum(membership.weight_millionths for membership in plan)
    need_range(total, 1, fields.MILLION, "the sum of a plan's weight_millionths")
    return plan


def hardware_ids(hardware: bytes) -> tuple[HardwareId, ...]:
    step = HARDWARE_ID_BYTES
    return tuple(HardwareId(hardware[at : at + step]) for at in range(0, len(hardware), step))


def need_hardware(hardware: bytes) -> bytes:
    """Refuse what is not 1 to 64 rising hardware ids; return it."""
    count, rest = divmod(len(hardware), HARDWARE_ID_BYTES)
    fields.need(rest == 0, f"hardware ids of {HARDWARE_ID_BYTES} bytes", f"{rest} bytes left over")
    need_range(count, 1, MAX_HARDWARE_IDS, "hardware ids")
    ids = list(hardware_ids(hardware))
    fields.need(ids == sorted(set(ids)), "hardware ids rising", "another order")
    return hardware


def encode_gpus(gpu_models: GpuModels) -> list[pb.GpuCount]:
    return [pb.GpuCount(model_index=model, count=count) for model, count in gpu_models]


def decode_gpus(message: Sequence[pb.GpuCount]) -> GpuModels:
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
        gpu_models=encode_gpus(entry.gpu_models),
        hardware=entry.hardware,
        voucher_id=entry.voucher_id,
    )


def _decode_entry(message: pb.RosterEntry, plans: int) -> RosterEntry:
    key = fields.need_bytes(message.ed25519_pk, 32, "ed25519_pk")
    return RosterEntry(
        host_id(key),
        key,
        fields.need_name(message.operator, "an operator"),
        need_range(message.plan, 0, plans - 1, "plan"),
        decode_gpus(message.gpu_models),
        need_hardware(message.hardware),
        VoucherId(fields.need_bytes(message.voucher_id, 16, "voucher_id")),
    )


def _need_distinct(entries: Iterable[RosterEntry]) -> None:
    """Refuse one part of a machine, or one voucher, with two hosts."""
    owned = [(part, e.host_id) for e in entries for part in (*e.hardware_ids, e.voucher_id)]
    times = Counter(part for part, _ in owned)
    if len(times) == len(owned):
        return
    ((twice, _),) = times.most_common(1)
    hosts = [host.hex() for part, host in owned if part == twice]
    raise ReportRejected(
        Reason.FIELD,
        "each hardware id and voucher once in a roster",
        f"{twice.hex()} with {hosts[0]} and {hosts[1]}",
    )
