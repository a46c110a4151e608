"""Operators and the hosts they vouch for: the same checks in the Leader's tool and the Helper's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from privacy.signing import verify
from transport.settings.config import limited
from wire.fields import NAME
from wire.join import JoinRequest
from wire.rejection import Reason, ReportRejected
from wire.roster import Roster, RosterEntry

OperatorKeys = Mapping[str, frozenset[bytes]]
"""The keys by which each operator may sign, by its name."""

_NAMED = 3
"""Hosts that a refusal names; it counts the others."""


@dataclass(frozen=True, slots=True)
class OperatorKey:
    """An operator's public key as a configuration pins it: 32 B of Ed25519."""

    key: bytes
    name: str = limited(form=NAME.pattern)

    def __post_init__(self) -> None:
        if len(self.key) != 32:
            raise ValueError(f"key of {self.name}: expected 32 bytes in hex, got {len(self.key)}")


def operator_keys(rows: Iterable[OperatorKey]) -> OperatorKeys:
    """Gather the keys of each operator; one that changes its key has two for a while.

    Raises      ValueError for a key under two names: one operator would count as two
    """
    names: dict[bytes, str] = {}
    for row in rows:
        other = names.setdefault(row.key, row.name)
        if other != row.name:
            raise ValueError(f"operator: expected a key of its own for {row.name}, got {other}'s")
    return {
        name: frozenset(key for key, owner in names.items() if owner == name)
        for name in names.values()
    }


def check_vouched(
    request: JoinRequest, operators: OperatorKeys, leader_pk: bytes, now_s: float
) -> None:
    """Refuse a request that no pinned operator stands behind.

    Raises      ReportRejected: join_voucher, join_token, join_signature
    """
    voucher = request.voucher
    if voucher.leader_pk != leader_pk:
        raise ReportRejected(Reason.JOIN_VOUCHER, "a voucher for this Leader", "another's")
    keys = operators.get(voucher.operator)
    if keys is None:
        known = ", ".join(sorted(operators)) or "none"
        expected = f"an operator whose key is pinned ({known})"
        raise ReportRejected(Reason.JOIN_VOUCHER, expected, voucher.operator)
    signed = voucher.unsigned()
    if not any(verify(key, signed, voucher.signature) for key in keys):
        expected = f"a voucher signed by the key of {voucher.operator}"
        raise ReportRejected(Reason.JOIN_VOUCHER, expected, "another")
    if voucher.not_after < now_s:
        expected = f"a voucher in force at {int(now_s)}"
        raise ReportRejected(Reason.JOIN_VOUCHER, expected, voucher.not_after)
    message = request.unsigned()
    if not verify(voucher.token_pk, message, request.token_signature):
        raise ReportRejected(Reason.JOIN_TOKEN, "the token's signature of this host", "another")
    if not verify(request.ed25519_pk, message, request.signature):
        raise ReportRejected(Reason.JOIN_SIGNATURE, "the host's signature", "another")


def check_hosts_vouched(
    roster: Roster,
    earlier: Sequence[Roster],
    requests: Iterable[JoinRequest],
    operators: OperatorKeys,
    leader_pk: bytes,
    now_s: float,
) -> None:
    """Refuse a roster with a host that its operator did not sign.

    earlier     rosters that were countersigned before: the hosts of the last were checked then, and
                a voucher of any of them stands for that host alone
    requests    of the hosts that are new, or new with this hardware, operator or voucher
    Raises      ReportRejected: join_voucher, join_token, join_signature, naming hosts
    """
    asked = {request.ed25519_pk: request for request in requests}
    before = max(earlier, key=lambda past: past.version, default=None)
    known = {} if before is None else {entry.host_id: _claim(entry) for entry in before.entries}
    used = {entry.voucher_id: _claim(entry) for past in earlier for entry in past.entries}
    lacking = []
    for entry in roster.entries:
        if entry.operator not in operators:
            expected = f"host {entry.host_id.hex()} of an operator whose key is pinned"
            raise ReportRejected(Reason.JOIN_VOUCHER, expected, entry.operator)
        if known.get(entry.host_id) == _claim(entry):
            continue
        request = asked.get(entry.ed25519_pk)
        if request is None or _asked(request) != _claim(entry):
            lacking.append(f"{entry.host_id.hex()} of {entry.operator}")
            continue
        if used.get(entry.voucher_id, _claim(entry)) != _claim(entry):
            expected = f"host {entry.host_id.hex()}: a token that enrolled no host before"
            raise ReportRejected(Reason.JOIN_TOKEN, expected, "a used one")
        try:
            check_vouched(request, operators, leader_pk, now_s)
        except ReportRejected as refusal:
            host = f"host {entry.host_id.hex()}: {refusal.expected}"
            raise ReportRejected(refusal.reason, host, refusal.got) from refusal
    if lacking:
        more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        raise ReportRejected(
            Reason.JOIN_VOUCHER,
            "every host with a request that its operator's voucher is in",
            f"none that fits {', '.join(lacking[:_NAMED])}{more}",
        )


_Claim = tuple[bytes, str, bytes, tuple[tuple[int, int], ...], bytes]


def _claim(entry: RosterEntry) -> _Claim:
    """What an operator's signature stands for; the plan is the Leader's."""
    key, voucher = entry.ed25519_pk, entry.voucher_id
    return key, entry.operator, entry.hardware, entry.gpu_models, voucher


def _asked(request: JoinRequest) -> _Claim:
    voucher = request.voucher
    hardware, models = request.hardware, request.gpu_models
    return request.ed25519_pk, voucher.operator, hardware, models, voucher.voucher_id
