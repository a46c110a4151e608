"""Enrolment: join requests under operators' vouchers become roster entries of a coming week."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aggregator.state.state_file import write_durably
from privacy.sealing import HpkeKeyPair, SealError
from privacy.signing import SigningKey
from transport.files.keyfiles import load_hpke_key
from transport.files.own_names import files_ending
from transport.files.private_files import UnfitFile, read_bounded
from transport.interface import Transport
from transport.settings.config import build, limited, read_table
from wire import labels
from wire.envelope import Kind, Signed, unwrap
from wire.fields import NAME, key_id
from wire.join import MAX_JOIN_BYTES, PADDED_BYTES, JoinRequest, SealedJoin
from wire.rejection import Reason, ReportRejected
from wire.roster import EntryAnswer, FleetName, Plan, PlanMembership, Roster
from wire.topics import JOINS, TOPICS

from .operators import OperatorKey, OperatorKeys, check_vouched, operator_keys
from .roster_draft import EnrolmentError, RefusedRequest, draft_roster, entry_of, next_start
from .tasks import sign_body, sign_roster


class NothingEnrolled(EnrolmentError):
    """Every request was refused, and nothing else of the roster was to change."""

    def __init__(self, refused: Sequence[RefusedRequest]) -> None:
        got = f"got {len(refused):,} that may not; no roster is written"
        super().__init__(f"expected a request that may join, {got}")
        self.refused = refused


@dataclass(frozen=True, slots=True)
class FleetTable:
    """The table [fleet] of the plans file: what rosters name beside the Leader's own key.

    helper_pk   identity, 32 B; empty for scheme `local` alone
    """

    name: str = limited(form=NAME.pattern)
    helper_pk: bytes = b""

    def __post_init__(self) -> None:
        if len(self.helper_pk) not in {0, 32}:
            raise ValueError(f"helper_pk: expected 32 bytes in hex, got {len(self.helper_pk)}")


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What the Leader's operator decided: plans by name, and whose vouchers are taken.

    fleet       None: rosters name it as the one before does
    """

    plans: Mapping[str, Plan]
    operators: OperatorKeys
    fleet: FleetTable | None = None

    def fleet_name(self, leader_pk: bytes, previous: Roster | None) -> FleetName | None:
        """Give whose roster comes next: as the plans file says, else as the roster before.

        Raises      EnrolmentError where the two do not name one fleet
        """
        before = None if previous is None else previous.fleet
        if self.fleet is None:
            return before
        if before is not None and before.name != self.fleet.name:
            expected = f"the name of the roster before, {before.name}"
            raise EnrolmentError(f"fleet.name: expected {expected}, got {self.fleet.name}")
        return FleetName(leader_pk, self.fleet.helper_pk, self.fleet.name)


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A roster and the answers to the requests that it took in, under the Leader's signature.

    vouchers    those requests, one behind the other: what the Helper's tool asks for
    """

    roster: bytes
    vouchers: bytes
    answers: Mapping[Path, bytes]
    summary: Mapping[str, Any]
    refused: Sequence[RefusedRequest]
    spent: frozenset[bytes]


def spent_file(plans_file: Path) -> Path:
    """Where ids of used vouchers are kept, beside the plans: a token works once for ever."""
    return plans_file.with_suffix(".spent")


def read_spent(plans_file: Path) -> frozenset[bytes]:
    """The id of every voucher that enrolled a host before; raises EnrolmentError, OSError."""
    path = spent_file(plans_file)
    try:
        return frozenset(bytes.fromhex(line) for line in path.read_text().split())
    except FileNotFoundError:
        return frozenset()
    except ValueError as error:
        raise EnrolmentError(f"{path}: expected ids in hex, got: {error}") from error


def write_spent(plans_file: Path, spent: Collection[bytes]) -> None:
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
    fleet: FleetTable | None = None

    def __post_init__(self) -> None:
        operator_keys(self.operators)


def load_enrolment(path: Path) -> Enrolment:
    """Read plans and operators.

    [[plan]] name, series = {NAME = {cohort, weight_millionths}}
    [[operator]] name, key (hex)
    [fleet] name, helper_pk (hex)
    Raises      EnrolmentError, OSError
    """
    table = read_table(path, error=EnrolmentError)
    file = build(_EnrolmentFile, table, f"{path}: ", error=EnrolmentError)
    plans = {row.name: row.plan for row in file.plans}
    return Enrolment(plans, operator_keys(file.operators), file.fleet)


def check_request(
    request: JoinRequest, enrolment: Enrolment, leader_pk: bytes, now_s: float
) -> None:
    """Verify a join request: its signatures, its operator's voucher and the plan that names.

    Raises      ReportRejected: join_voucher, join_token, join_signature
    """
    check_vouched(request, enrolment.operators, leader_pk, now_s)
    if request.voucher.plan not in enrolment.plans:
        plans = ", ".join(sorted(enrolment.plans))
        raise ReportRejected(Reason.JOIN_VOUCHER, f"one of the plans {plans}", request.voucher.plan)


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
    """Take in each *.join of a folder that may join and has no *.entry yet.

    One that may not is named in `refused`, and keeps no other out.
    at_once     in force now; otherwise from the next start of a week
    remove      ids of hosts that leave
    Returns     with `spent`, which the caller writes once roster and answers are on disk
    Raises      EnrolmentError; ReportRejected: the roster before is none; OSError
    """
    enrolment = load_enrolment(plans_file)
    if not folder.is_dir():
        raise EnrolmentError(f"{folder}: expected a folder of *.join requests, found none")
    asked = read_requests(folder)
    waiting = {path: asked[path] for path in asked if not path.with_suffix(".entry").exists()}
    answered = [asked[path] for path in asked if path not in waiting]
    spent = read_spent(plans_file) | {
        request.voucher.voucher_id for request in answered if isinstance(request, JoinRequest)
    }
    now = int(time.time() if now_s is None else now_s)
    sound: dict[str, JoinRequest] = {}
    refused = []
    for path, found in waiting.items():
        request = found if isinstance(found, JoinRequest) else None
        try:
            if isinstance(found, ReportRejected):
                raise found
            check_request(found, enrolment, leader.public_bytes, now)
            sound[str(path)] = found
        except ReportRejected as refusal:
            refused.append(RefusedRequest.of(str(path), refusal, request))
    previous = None
    if previous_file is not None:
        signed = Signed.decode(previous_file.read_bytes(), labels.ROSTER)
        previous = Roster.decode_body(signed.body)
    start_s = now if at_once else next_start(previous, now)
    fleet = enrolment.fleet_name(leader.public_bytes, previous)
    draft = draft_roster(previous, enrolment.plans, sound, start_s, spent, remove, fleet=fleet)
    refused = sorted([*refused, *draft.refused], key=lambda one: one.source)
    if refused and not draft.enrolled and not remove:
        raise NothingEnrolled(refused)
    if not draft.roster.entries:
        raise EnrolmentError(
            "expected at least one host, from a request that has no answer yet or from the roster "
            "before (--previous), got none"
        )
    roster, enrolled = draft.roster, draft.enrolled
    summary = {
        "version": roster.version,
        "fleet": None if roster.fleet is None else roster.fleet.name,
        "effective_from": roster.effective_from,
        "hosts": len(roster.entries),
        "enrolled": len(enrolled),
        "removed": len(remove),
    }
    return Enrolled(
        sign_roster(roster, leader, None),
        b"".join(request.encode() for request in enrolled.values()),
        {
            Path(source).with_suffix(".entry"): _answer(request, enrolment, roster, leader)
            for source, request in enrolled.items()
        },
        summary,
        refused,
        spent | {request.voucher.voucher_id for request in enrolled.values()},
    )


def read_requests(folder: Path) -> dict[Path, JoinRequest | ReportRejected]:
    """Read the *.join files of a folder; of one that is no request, why it is none.

    Raises      OSError
    """
    found: dict[Path, JoinRequest | ReportRejected] = {}
    for path in files_ending(folder, ".join", folders=None):
        try:
            found[path] = JoinRequest.decode(read_bounded(path, MAX_JOIN_BYTES))
        except ReportRejected as refusal:
            found[path] = refusal
        except UnfitFile as unfit:
            found[path] = ReportRejected(Reason.LENGTH, "a join request", unfit.strerror)
    return found


def _answer(
    request: JoinRequest, enrolment: Enrolment, roster: Roster, leader: SigningKey
) -> bytes:
    plan, at = enrolment.plans[request.voucher.plan], (roster.version, roster.effective_from)
    body = EntryAnswer(request.hash(), *at, entry_of(request, 0), plan).encode_body()
    return sign_body(labels.ENTRY_ANSWER, body, leader, None).encode()


GROUP: Final = "roster-build"
MAX_RECORDS: Final = 100_000
"""Of one run: as many as a fleet has hosts; what is left comes with the next run."""

POLL_RECORDS: Final = 1000
POLL_S: Final = 0.5
_TOPIC: Final = next(topic for topic in TOPICS if topic.name == JOINS)


def sealing_pairs(folder: Path, *, owner: int | None = None) -> Mapping[bytes, HpkeKeyPair]:
    """Read the Leader's daily sealing keys by their id.

    owner       the user whose files they must be; the effective user without it
    Raises      KeyFileRefused
    """
    pairs = [load_hpke_key(path, owner=owner).pair for path in sorted(folder.glob("*.hpke"))]
    return {key_id(pair.public_bytes): pair for pair in pairs}


def fetch_requests(
    transport: Transport,
    plans_file: Path,
    folder: Path,
    leader_pk: bytes,
    pairs: Mapping[bytes, HpkeKeyPair],
    now_s: float,
) -> Mapping[str, int]:
    """Open each sound request of the log and write it as HASH.join; offsets are committed behind.

    Anyone who may write to the log may write nonsense: a request that does not open, that no
    pinned operator stands behind, or whose token another request of the folder or an earlier roster
    used, is counted and left out, and stops nobody else's.
    Returns     `fetched`, `repeated` where hosts asked again, and reason -> requests left out
    Raises      EnrolmentError, TransportUnavailable, OSError
    """
    enrolment = load_enrolment(plans_file)
    folder.mkdir(parents=True, exist_ok=True)
    here = [found for found in read_requests(folder).values() if isinstance(found, JoinRequest)]
    used = set(read_spent(plans_file)) | {request.voucher.voucher_id for request in here}
    asked = {request.hash() for request in here}
    transport.create_topic(_TOPIC.name, _TOPIC.partitions)
    consumer = transport.consumer(GROUP, [JOINS])
    found: Counter[str] = Counter(fetched=0)
    try:
        read = 0
        while read < MAX_RECORDS and (records := consumer.poll(POLL_RECORDS, POLL_S)):
            read += len(records)
            for record in records:
                try:
                    kind, core = unwrap(record.value, _TOPIC.max_bytes)
                    if kind is not Kind.JOIN_REQUEST:
                        raise ReportRejected(Reason.ENVELOPE, "a join request", kind.name)
                    request = open_join(core, pairs)
                    check_request(request, enrolment, leader_pk, now_s)
                    if request.hash() in asked:
                        found["repeated"] += 1
                        continue
                    if request.voucher.voucher_id in used:
                        raise ReportRejected(Reason.JOIN_TOKEN, "a token not used", "a used one")
                except ReportRejected as refusal:
                    found[refusal.reason.value] += 1
                    continue
                used.add(request.voucher.voucher_id)
                asked.add(request.hash())
                write_durably(folder / f"{request.hash().hex()[:32]}.join", request.encode())
                found["fetched"] += 1
            consumer.commit(consumer.positions())
    finally:
        consumer.close()
    return found


def open_join(core: bytes, pairs: Mapping[bytes, HpkeKeyPair]) -> JoinRequest:
    """Open a sealed request.

    pairs       the Leader's keys that are left, by key id
    Raises      ReportRejected: join_clear, join_seal, length, version, padding, field
    """
    sealed = SealedJoin.decode(core)
    pair = pairs.get(sealed.leader_kid)
    if pair is None:
        raise ReportRejected(Reason.JOIN_SEAL, "a key that is held", sealed.leader_kid.hex())
    try:
        plain = pair.open_message(sealed.sealed, sealed.info(), PADDED_BYTES)
    except SealError:
        expected = "a seal that opens under the host's key and this one"
        raise ReportRejected(Reason.JOIN_SEAL, expected, "another") from None
    request = JoinRequest.from_padded(plain)
    if request.ed25519_pk != sealed.ed25519_pk:
        raise ReportRejected(Reason.JOIN_SEAL, "the key of the host that sealed it", "another")
    return request
