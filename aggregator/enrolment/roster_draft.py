"""The next roster: who may join, who may not and why, and who leaves."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privacy.budget import WEEK_S
from privacy.signing import SigningKey, verify
from wire import labels
from wire.envelope import Signed
from wire.fields import (
    NO_SIGNATURE,
    ROSTER_BEGINS_DAYS,
    HardwareId,
    HostId,
    host_id,
    need_within,
)
from wire.join import JoinRequest
from wire.rejection import Reason, ReportRejected
from wire.roster import FleetName, Plan, Roster, RosterEntry

from .tasks import roster_counts, sign_roster


class EnrolmentError(ValueError):
    """No roster can be made: of what plans and operators say, or of whom it is to take in."""


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """A request that a roster leaves out.

    source      where it came from: its file
    host        its host's id; None where the request does not say
    """

    source: str
    host: bytes | None
    reason: Reason
    expected: str
    got: str

    @classmethod
    def of(cls, source: str, refusal: ReportRejected, asked: JoinRequest | None) -> RefusedRequest:
        host = None if asked is None else bytes(host_id(asked.ed25519_pk))
        return cls(source, host, refusal.reason, refusal.expected, refusal.got)

    def __str__(self) -> str:
        host = "" if self.host is None else f"host {self.host.hex()}: "
        return f"{self.source}: {host}{self.reason.value}: expected {self.expected}, got {self.got}"


@dataclass(frozen=True, slots=True)
class RosterDraft:
    """A roster to be signed; enrolled: source -> request that it takes in."""

    roster: Roster
    enrolled: Mapping[str, JoinRequest]
    refused: Sequence[RefusedRequest]


def next_start(previous: Roster | None, now_s: int) -> int:
    """Give the first start of a week that is after now, and after the roster before came in force.

    now_s       seconds since 1970, as the result
    Raises      ReportRejected: the roster before is in force too far from now
    """
    since_s = now_s if previous is None else max(now_s, previous.effective_from)
    start_s = (since_s // WEEK_S + 1) * WEEK_S
    need_within(start_s, now_s, ROSTER_BEGINS_DAYS, "effective_from")
    return start_s


def draft_roster(
    previous: Roster | None,
    plans: Mapping[str, Plan],
    requests: Mapping[str, JoinRequest],
    effective_from: int,
    spent: Collection[bytes] = (),
    remove: Collection[bytes] = (),
    *,
    fleet: FleetName | None = None,
) -> RosterDraft:
    """Add hosts to a roster: each part of a machine with one host, one host per voucher.

    A request that may not join is left out and named; it keeps no other from joining, but for one
    that claims the same token, host or hardware.
    requests    source -> request, its signatures and plan checked
    spent       ids of vouchers that enrolled a host before
    remove      ids of hosts that leave: what they ran on may come back under another key
    fleet       whose roster it is
    Raises      EnrolmentError: a host to remove that is not there
    """
    staying = {} if previous is None else {entry.host_id: entry for entry in previous.entries}
    for host in remove:
        if staying.pop(HostId(host), None) is None:
            raise EnrolmentError(f"expected a host of the roster before to remove: {host.hex()}")
    owners = {part: entry for entry in staying.values() for part in entry.hardware_ids}
    refused: dict[str, ReportRejected] = {}
    for source, asked in requests.items():
        try:
            _need_new(asked, staying, owners, spent)
        except ReportRejected as refusal:
            refused[source] = refusal
    refused |= _clashes({s: asked for s, asked in requests.items() if s not in refused})
    enrolled = {source: asked for source, asked in requests.items() if source not in refused}
    old = () if previous is None else previous.plans
    table = old + tuple(plan for plan in plans.values() if plan not in old)
    entries = staying | {
        host_id(asked.ed25519_pk): entry_of(asked, table.index(plans[asked.voucher.plan]))
        for asked in enrolled.values()
    }
    version = 1 if previous is None else previous.version + 1
    named = tuple(entries[host] for host in sorted(entries))
    return RosterDraft(
        Roster(version, effective_from, table, named, fleet),
        enrolled,
        [RefusedRequest.of(s, refusal, requests[s]) for s, refusal in sorted(refused.items())],
    )


def entry_of(request: JoinRequest, plan: int) -> RosterEntry:
    """What a roster has of a host that asked; plan: its place in the roster's plans."""
    voucher, key = request.voucher, request.ed25519_pk
    machine = request.gpu_models, request.hardware
    return RosterEntry(host_id(key), key, voucher.operator, plan, *machine, voucher.voucher_id)


def _need_new(
    asked: JoinRequest,
    staying: Collection[bytes],
    owners: Mapping[HardwareId, RosterEntry],
    spent: Collection[bytes],
) -> None:
    """Refuse a request that asks for what the roster has already.

    Raises      ReportRejected: join_token, join_hardware
    """
    if asked.voucher.voucher_id in spent:
        got = "one that enrolled a host before"
        raise ReportRejected(Reason.JOIN_TOKEN, "a token used once", got)
    host = host_id(asked.ed25519_pk)
    if host in staying:
        expected = "a host not enrolled yet; remove its request, and it stays as it is"
        raise ReportRejected(Reason.JOIN_HARDWARE, expected, host.hex())
    taken = [part for part in asked.hardware_ids if part in owners]
    if taken:
        other, parts = owners[taken[0]].host_id.hex(), len(asked.hardware_ids)
        way = f"one that was installed anew leaves by --remove {other}"
        if len(taken) == 1:  # of two, one is a GPU, and no image brings GPUs
            way = (
                f"where {other} is another machine, this one is a copy: it needs a machine id of "
                f"its own (`agent disown`), and nobody leaves; {way}"
            )
        raise ReportRejected(
            Reason.JOIN_HARDWARE,
            f"hardware that is with no other host; {way}",
            f"{len(taken)} of {parts} ids that host {other} has, first {taken[0].hex()}",
        )


def _clashes(requests: Mapping[str, JoinRequest]) -> dict[str, ReportRejected]:
    """Refuse what more than one request claims: nobody here can tell which is right."""
    claimed: defaultdict[tuple[Reason, str, bytes], list[str]] = defaultdict(list)
    for source, asked in requests.items():
        host = host_id(asked.ed25519_pk)
        claimed[Reason.JOIN_TOKEN, "a token used once", asked.voucher.voucher_id].append(source)
        claimed[Reason.JOIN_HARDWARE, "a host that asks once", host].append(source)
        for part in asked.hardware_ids:
            expected = (
                "hardware that no other request has: machines of one image need a machine id "
            )
            expected += "each (`agent disown`)"
            claimed[Reason.JOIN_HARDWARE, expected, part].append(source)
    refused: dict[str, ReportRejected] = {}
    for (reason, expected, _), sources in claimed.items():
        for source in sources if len(sources) > 1 else ():
            other = next(name for name in sources if name != source)
            clash = ReportRejected(reason, expected, f"one that {other} has too")
            refused.setdefault(source, clash)
    return refused


@dataclass(frozen=True, slots=True)
class Leaving:
    """Who leaves.

    hosts       ids
    operators   names: all of their hosts
    everybody   all hosts: the roster after is empty, and no window of a later one is taken
    """

    hosts: Collection[bytes] = ()
    operators: Collection[str] = ()
    everybody: bool = False


def without(
    previous_file: Path, leaving: Leaving, leader: SigningKey, now_s: float | None = None
) -> tuple[bytes, dict[str, Any]]:
    """Sign the roster after `previous_file`, in force from the next start of a week.

    Gives the roster without those who left, under the Leader's signature, and what it says.

    Raises      EnrolmentError: nobody leaves, or a host or operator that is not there;
                ReportRejected: the roster before is none, or lacks a signature; OSError
    """
    previous = read_signed_roster(previous_file, leader.public_bytes)
    hosts = _hosts_of(previous, leaving)
    start_s = next_start(previous, int(time.time() if now_s is None else now_s))
    roster = draft_roster(previous, {}, {}, start_s, remove=hosts, fleet=previous.fleet).roster
    return sign_roster(roster, leader, None), roster_counts(roster, removed=len(hosts))


def read_signed_roster(file: Path, leader_pk: bytes) -> Roster:
    """Read a roster that this Leader signed and a Helper countersigned.

    The Helper's signature is the Helper's tool to judge: here one must be there.
    Raises      ReportRejected; OSError
    """
    signed = Signed.decode(file.read_bytes(), labels.ROSTER)
    if not verify(leader_pk, signed.unsigned(), signed.sig_leader):
        expected = f"{file} under the signature of this Leader"
        raise ReportRejected(Reason.ROSTER_SIGNATURE, expected, "another")
    if signed.sig_helper == NO_SIGNATURE:
        expected = f"{file} as the Helper countersigned it"
        raise ReportRejected(Reason.ROSTER_SIGNATURE, expected, "one that it did not")
    return Roster.decode_body(signed.body)


def _hosts_of(roster: Roster, leaving: Leaving) -> list[bytes]:
    if leaving.everybody:
        found = [bytes(entry.host_id) for entry in roster.entries]
    else:
        known = {entry.operator for entry in roster.entries}
        for name in leaving.operators:
            if name not in known:
                words = ", ".join(sorted(known)) or "none"
                raise EnrolmentError(f"expected an operator of the roster ({words}), got {name}")
        theirs = [bytes(e.host_id) for e in roster.entries if e.operator in leaving.operators]
        found = list(dict.fromkeys([*leaving.hosts, *theirs]))
    if not found:
        raise EnrolmentError("expected at least one host that leaves, got none")
    return found
