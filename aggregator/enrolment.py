"""Enrolment: join requests with one-use tokens become roster entries of a coming week."""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from privacy.signing import SigningKey, verify
from transport.config_tree import build, limited, read_table
from wire import labels
from wire.bounds import NAME
from wire.envelope import Signed
from wire.ids import host_id
from wire.rejection import Reason, ReportRejected
from wire.roster import EntryAnswer, JoinRequest, Plan, PlanMembership, Roster, RosterEntry

from .state_file import write_durably

WEEK_S: Final = 7 * 86_400


class EnrolmentError(ValueError):
    """The enrolment file does not say what it must say."""


@dataclass(frozen=True, slots=True)
class Token:
    """A one-use token, known by its SHA-256: whom it enrols, and under which plan."""

    sha256: bytes
    plan: str
    operator: str = limited(form=NAME.pattern)


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What the Leader's operator decided: plans by name, tokens by hash."""

    plans: Mapping[str, Plan]
    tokens: Mapping[bytes, Token]


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A roster and the answers to the requests that it took in, under the Leader's signature."""

    roster: bytes
    answers: Mapping[Path, bytes]
    summary: Mapping[str, Any]
    spent: frozenset[bytes]


def spent_file(plans_file: Path) -> Path:
    """Where the hashes of used tokens are kept, beside the plans: a token works once for ever."""
    return plans_file.with_suffix(".spent")


def read_spent(plans_file: Path) -> frozenset[bytes]:
    """The SHA-256 of every token that enrolled a host before.

    Raises      EnrolmentError, OSError
    """
    path = spent_file(plans_file)
    try:
        return frozenset(bytes.fromhex(line) for line in path.read_text().split())
    except FileNotFoundError:
        return frozenset()
    except ValueError as error:
        raise EnrolmentError(f"{path}: expected hashes in hex, got: {error}") from error


def write_spent(plans_file: Path, spent: Collection[bytes]) -> None:
    """Replace the list of used tokens durably."""
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
    tokens: tuple[Token, ...] = limited((), key="token")

    def __post_init__(self) -> None:
        plans = sorted(row.name for row in self.plans)
        for token in self.tokens:
            if token.plan not in plans:
                raise ValueError(
                    f"token: expected one of the plans {', '.join(plans)}, got {token.plan!r}"
                )


def load_enrolment(path: Path) -> Enrolment:
    """Read plans and tokens.

    [[plan]] name, series = {NAME = {cohort, weight_millionths}}
    [[token]] sha256 (hex of the token's hash), operator, plan
    Raises      EnrolmentError, OSError
    """
    table = read_table(path, error=EnrolmentError)
    file = build(_EnrolmentFile, table, f"{path}: ", error=EnrolmentError)
    return Enrolment(
        {row.name: row.plan for row in file.plans}, {token.sha256: token for token in file.tokens}
    )


def operator_name(text: str) -> str:
    """A name that a roster can carry.

    Raises      EnrolmentError
    """
    if NAME.fullmatch(text) is None:
        raise EnrolmentError(f"expected an operator like {NAME.pattern}, got {text!r}")
    return text


def new_token() -> bytes:
    """A one-use token: 43 characters that fit a line."""
    return secrets.token_urlsafe(32).encode()


def token_lines(sha256: str, operator: str, plan: str) -> str:
    """A token's lines of the enrolment file."""
    names = f'operator = "{operator_name(operator)}"\nplan = {json.dumps(plan)}'
    return f'\n[[token]]\nsha256 = "{sha256}"\n{names}'


def check_request(raw: bytes, enrolment: Enrolment) -> tuple[JoinRequest, Token]:
    """Verify a join request: its own signature, then its token.

    Raises      ReportRejected: length, version, field, join_signature, join_token
    """
    request = JoinRequest.decode(raw)
    if not verify(request.ed25519_pk, raw[:-64], request.signature):
        raise ReportRejected(Reason.JOIN_SIGNATURE, "the host's signature", "another")
    token = enrolment.tokens.get(token_hash(request))
    if token is None:
        raise ReportRejected(Reason.JOIN_TOKEN, "a token of the enrolment file", "another")
    return request, token


def token_hash(request: JoinRequest) -> bytes:
    """What a token is known by."""
    return hashlib.sha256(request.token).digest()


def next_roster(
    previous: Roster | None,
    enrolment: Enrolment,
    requests: Iterable[tuple[JoinRequest, Token]],
    effective_from: int,
    spent: Collection[bytes] = (),
) -> Roster:
    """Add hosts to a roster: one roster id per machine, one machine per token.

    spent       hashes of tokens that enrolled a host before
    Raises      ReportRejected: join_hardware, join_token
    """
    old_plans = () if previous is None else previous.plans
    plans = old_plans + tuple(p for p in enrolment.plans.values() if p not in old_plans)
    entries = {} if previous is None else {e.hardware_hash: e for e in previous.entries}
    used: set[bytes] = set(spent)
    for request, token in requests:
        if token_hash(request) in used:
            raise ReportRejected(Reason.JOIN_TOKEN, "a token used once", "one used twice")
        used.add(token_hash(request))
        if request.hardware_hash in entries:
            raise ReportRejected(Reason.JOIN_HARDWARE, "a machine not enrolled yet", "one that is")
        entries[request.hardware_hash] = RosterEntry(
            host_id(request.ed25519_pk),
            request.ed25519_pk,
            token.operator,
            plans.index(enrolment.plans[token.plan]),
            request.gpu_models,
            request.hardware_hash,
        )
    if not entries:
        raise EnrolmentError("expected at least one host, from a request or the roster before")
    version = 1 if previous is None else previous.version + 1
    ordered = tuple(sorted(entries.values(), key=lambda entry: entry.host_id))
    return Roster(version, effective_from, plans, ordered)


def enrol_folder(
    plans_file: Path,
    folder: Path,
    previous_file: Path | None,
    leader: SigningKey,
    *,
    at_once: bool = False,
    now_s: float | None = None,
) -> Enrolled:
    """Take in every *.join of a folder that has no *.entry yet.

    at_once     in force now; otherwise from the next start of a week
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
    before = {token_hash(JoinRequest.decode(p.read_bytes())) for p in joins if p not in paths}
    spent = read_spent(plans_file) | before
    requests = [check_request(path.read_bytes(), enrolment) for path in paths]
    now = int(time.time() if now_s is None else now_s)
    effective_from = now if at_once else (now // WEEK_S + 1) * WEEK_S
    roster = next_roster(previous, enrolment, requests, effective_from, spent)
    answers = {
        path.with_suffix(".entry"): _answer(request, enrolment.plans[token.plan], roster, leader)
        for path, (request, token) in zip(paths, requests, strict=True)
    }
    summary = {
        "version": roster.version,
        "effective_from": effective_from,
        "hosts": len(roster.entries),
        "enrolled": len(requests),
    }
    now_spent = spent | {token_hash(request) for request, _ in requests}
    return Enrolled(_sign(labels.ROSTER, roster.encode_body(), leader), answers, summary, now_spent)


def _answer(request: JoinRequest, plan: Plan, roster: Roster, leader: SigningKey) -> bytes:
    entry = RosterEntry(
        host_id(request.ed25519_pk),
        request.ed25519_pk,
        next(e.operator for e in roster.entries if e.ed25519_pk == request.ed25519_pk),
        0,
        request.gpu_models,
        request.hardware_hash,
    )
    body = EntryAnswer(
        request.hash(), roster.version, roster.effective_from, entry, plan
    ).encode_body()
    return _sign(labels.ENTRY_ANSWER, body, leader)


def _sign(label: bytes, body: bytes, leader: SigningKey) -> bytes:
    return Signed(label, body, leader.sign(Signed(label, body).unsigned())).encode()
