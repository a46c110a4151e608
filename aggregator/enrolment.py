"""Enrolment: join requests under operators' vouchers become roster entries of a coming week."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from privacy.signing import SigningKey
from transport.config_tree import build, limited, read_table
from wire import labels
from wire.envelope import Signed
from wire.ids import HardwareId, host_id
from wire.join import JoinRequest
from wire.rejection import Reason, ReportRejected
from wire.roster import EntryAnswer, Plan, PlanMembership, Roster, RosterEntry

from .operators import OperatorKey, OperatorKeys, check_vouched, operator_keys
from .state_file import write_durably

WEEK_S: Final = 7 * 86_400


class EnrolmentError(ValueError):
    """The enrolment file does not say what it must say."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What the Leader's operator decided: plans by name, and whose vouchers are taken."""

    plans: Mapping[str, Plan]
    operators: OperatorKeys


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A roster and the answers to the requests that it took in, under the Leader's signature.

    vouchers    those requests, one behind the other: what the Helper's tool asks for
    """

    roster: bytes
    vouchers: bytes
    answers: Mapping[Path, bytes]
    summary: Mapping[str, Any]
    spent: frozenset[bytes]


def spent_file(plans_file: Path) -> Path:
    """Where ids of used vouchers are kept, beside the plans: a token works once for ever."""
    return plans_file.with_suffix(".spent")


def read_spent(plans_file: Path) -> frozenset[bytes]:
    """The id of every voucher that enrolled a host before.

    Raises      EnrolmentError, OSError
    """
    path = spent_file(plans_file)
    try:
        return frozenset(bytes.fromhex(line) for line in path.read_text().split())
    except FileNotFoundError:
        return frozenset()
    except ValueError as error:
        raise EnrolmentError(f"{path}: expected ids in hex, got: {error}") from error


def write_spent(plans_file: Path, spent: Collection[bytes]) -> None:
    """Replace the list of used vouchers durably."""
    lines = "".join(f"{digest.hex()}\n" for digest in sorted(spent))
    write_durably(spent_file(plans_file), lines.encode())


@dataclass(frozen=True, slots=True)
class _Membership:
    cohort: int
    weight_millionths: int


@dataclass(frozen=True, slots=True)
class _PlanRow:
    name: str
    series: Mapping[str, _Membership]

    @property
    def plan(self) -> Plan:
        return tuple(
            PlanMembership(series, part.cohort, part.weight_millionths)
            for series, part in self.series.items()
        )


@dataclass(frozen=True, slots=True)
class _EnrolmentFile:
    plans: tuple[_PlanRow, ...] = limited(key="plan", fewest=1)
    operators: tuple[OperatorKey, ...] = limited((), key="operator")

    def __post_init__(self) -> None:
        operator_keys(self.operators)


def load_enrolment(path: Path) -> Enrolment:
    """Read plans and operators.

    [[plan]] name, series = {NAME = {cohort, weight_millionths}}
    [[operator]] name, key (hex)
    Raises      EnrolmentError, OSError
    """
    table = read_table(path, error=EnrolmentError)
    file = build(_EnrolmentFile, table, f"{path}: ", error=EnrolmentError)
    return Enrolment({row.name: row.plan for row in file.plans}, operator_keys(file.operators))


def check_request(raw: bytes, enrolment: Enrolment, leader_pk: bytes, now_s: float) -> JoinRequest:
    """Verify a join request: its signatures, its operator's voucher and the plan that names.

    Raises      ReportRejected: length, version, field, join_voucher, join_token, join_signature
    """
    request = JoinRequest.decode(raw)
    check_vouched(request, enrolment.operators, leader_pk, now_s)
    if request.voucher.plan not in enrolment.plans:
        plans = ", ".join(sorted(enrolment.plans))
        raise ReportRejected(Reason.JOIN_VOUCHER, f"one of the plans {plans}", request.voucher.plan)
    return request


def next_roster(
    previous: Roster | None,
    enrolment: Enrolment,
    requests: Mapping[str, JoinRequest],
    effective_from: int,
    spent: Collection[bytes] = (),
    remove: Collection[bytes] = (),
) -> Roster:
    """Add hosts to a roster: each part of a machine with one host, one host per voucher.

    requests    where each came from -> request; a refusal names it
    spent       ids of vouchers that enrolled a host before
    remove      ids of hosts that leave: what they ran on may come back under another key
    Raises      ReportRejected: join_hardware, join_token; EnrolmentError
    """
    old_plans = () if previous is None else previous.plans
    plans = old_plans + tuple(p for p in enrolment.plans.values() if p not in old_plans)
    entries = _staying(previous, remove)
    owners = {part: entry for entry in entries.values() for part in entry.hardware_ids}
    used: set[bytes] = set(spent)
    for source, request in requests.items():
        entry = _entry(request, plans.index(enrolment.plans[request.voucher.plan]))
        if entry.voucher_id in used:
            raise ReportRejected(
                Reason.JOIN_TOKEN, "a token used once", f"one used twice ({source})"
            )
        used.add(entry.voucher_id)
        if entry.host_id in entries:
            raise ReportRejected(
                Reason.JOIN_HARDWARE,
                "a host not enrolled yet; remove its request, and it stays as it is",
                f"{entry.host_id.hex()} ({source})",
            )
        _need_free(entry, owners, source)
        entries[entry.host_id] = entry
        owners |= dict.fromkeys(entry.hardware_ids, entry)
    if not entries:
        raise EnrolmentError(
            "expected at least one host, from a request that has no answer yet or from the roster "
            "before (--previous), got none"
        )
    version = 1 if previous is None else previous.version + 1
    return Roster(version, effective_from, plans, tuple(entries[host] for host in sorted(entries)))


def _staying(previous: Roster | None, remove: Collection[bytes]) -> dict[bytes, RosterEntry]:
    entries: dict[bytes, RosterEntry] = {}
    if previous is not None:
        entries = {entry.host_id: entry for entry in previous.entries}
    for host in remove:
        if entries.pop(host, None) is None:
            raise EnrolmentError(f"expected a host of the roster before to remove: {host.hex()}")
    return entries


def _entry(request: JoinRequest, plan: int) -> RosterEntry:
    return RosterEntry(
        host_id(request.ed25519_pk),
        request.ed25519_pk,
        request.voucher.operator,
        plan,
        request.gpu_models,
        request.hardware,
        request.voucher.voucher_id,
    )


def _need_free(entry: RosterEntry, owners: Mapping[HardwareId, RosterEntry], source: str) -> None:
    taken = [part for part in entry.hardware_ids if part in owners]
    if taken:
        other = owners[taken[0]]
        raise ReportRejected(
            Reason.JOIN_HARDWARE,
            "hardware that is with no other host; one that was installed anew leaves by "
            f"--remove {other.host_id.hex()}",
            f"{len(taken)} of {len(entry.hardware_ids)} ids of host {entry.host_id.hex()} that "
            f"host {other.host_id.hex()} has, first {taken[0].hex()} ({source})",
        )


def enrol_folder(
    plans_file: Path,
    folder: Path,
    previous_file: Path | None,
    leader: SigningKey,
    *,
    at_once: bool = False,
    remove: Collection[bytes] = (),
    now_s: float | None = None,
) -> Enrolled:
    """Take in every *.join of a folder that has no *.entry yet.

    at_once     in force now; otherwise from the next start of a week
    remove      ids of hosts that leave
    Returns     with `spent`, which the caller writes once roster and answers are on disk
    Raises      EnrolmentError, ReportRejected
    """
    enrolment = load_enrolment(plans_file)
    if not folder.is_dir():
        raise EnrolmentError(f"{folder}: expected a folder of *.join requests, found none")
    previous = None
    if previous_file is not None:
        signed = Signed.decode(previous_file.read_bytes(), labels.ROSTER)
        previous = Roster.decode_body(signed.body)
    joins = sorted(folder.glob("*.join"))
    paths = [path for path in joins if not path.with_suffix(".entry").exists()]
    answered = (JoinRequest.decode(path.read_bytes()) for path in joins if path not in set(paths))
    spent = read_spent(plans_file) | {request.voucher.voucher_id for request in answered}
    now = int(time.time() if now_s is None else now_s)
    requests = {path: _read(path, enrolment, leader.public_bytes, now) for path in paths}
    effective_from = now if at_once else (now // WEEK_S + 1) * WEEK_S
    named = {str(path): request for path, request in requests.items()}
    roster = next_roster(previous, enrolment, named, effective_from, spent, remove)
    answers = {
        path.with_suffix(".entry"): _answer(request, enrolment, roster, leader)
        for path, request in requests.items()
    }
    summary = {
        "version": roster.version,
        "effective_from": effective_from,
        "hosts": len(roster.entries),
        "enrolled": len(requests),
        "removed": len(remove),
    }
    return Enrolled(
        _sign(labels.ROSTER, roster.encode_body(), leader),
        b"".join(request.encode() for request in requests.values()),
        answers,
        summary,
        spent | {request.voucher.voucher_id for request in requests.values()},
    )


def _read(path: Path, enrolment: Enrolment, leader_pk: bytes, now_s: float) -> JoinRequest:
    try:
        return check_request(path.read_bytes(), enrolment, leader_pk, now_s)
    except ReportRejected as refusal:
        raise ReportRejected(
            refusal.reason, refusal.expected, f"{refusal.got} ({path})"
        ) from refusal


def _answer(
    request: JoinRequest, enrolment: Enrolment, roster: Roster, leader: SigningKey
) -> bytes:
    body = EntryAnswer(
        request.hash(),
        roster.version,
        roster.effective_from,
        _entry(request, 0),
        enrolment.plans[request.voucher.plan],
    ).encode_body()
    return _sign(labels.ENTRY_ANSWER, body, leader)


def _sign(label: bytes, body: bytes, leader: SigningKey) -> bytes:
    return Signed(label, body, leader.sign(Signed(label, body).unsigned())).encode()
