"""Hosts that operators vouch for: entries of a roster, and the requests behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from aggregator.enrolment.operators import OperatorKeys
from edge_agent.membership import join_request
from edge_agent.protocol.epochs import Host
from privacy.signing import SigningKey
from tests.protocol_kit import T0, hpke_pair, signing_key
from transport.files.private_files import JoinToken
from wire.epoch import KeyAnnouncement
from wire.fields import HardwareId, hardware_id, host_id
from wire.join import JoinRequest, Voucher
from wire.roster import GpuModels, RosterEntry

LEADER = signing_key("leader")
FOR_EVER = T0 + 10**8
GPUS: GpuModels = ((2, 8),)


def operator_key(name: str) -> SigningKey:
    return signing_key("operator", name)


def pinned(*names: str) -> OperatorKeys:
    return {name: frozenset({operator_key(name).public_bytes}) for name in names}


def token(
    name: object,
    operator: str = "acme",
    *,
    plan: str = "fleet",
    signer: SigningKey | None = None,
    leader: SigningKey = LEADER,
    not_after: int = FOR_EVER,
) -> JoinToken:
    """The token of this name, of an operator; `signer` in place of the operator's key."""
    signing = signing_key("token", name)
    draft = Voucher(leader.public_bytes, signing.public_bytes, operator, plan, not_after)
    by = signer or operator_key(operator)
    return JoinToken(signing, replace(draft, signature=by.sign(draft.unsigned())))


def host(name: object) -> Host:
    key = signing_key("join", name)
    return Host(key, host_id(key.public_bytes))


def request(name: object, hardware: Sequence[str] = (), by: JoinToken | None = None) -> JoinRequest:
    """A host's request; without more, with hardware and a token of its own."""
    return join_request(host(name), hardware or (f"GPU-{name}",), by or token(name), GPUS)


def entry(asked: JoinRequest, plan: int = 0) -> RosterEntry:
    identity = host_id(asked.ed25519_pk)
    return RosterEntry(
        identity, asked.ed25519_pk, asked.voucher.operator, plan, asked.gpu_models,
        asked.hardware, asked.voucher.voucher_id,
    )  # fmt: skip


def vouchers(requests: Iterable[JoinRequest]) -> bytes:
    return b"".join(asked.encode() for asked in requests)


def part(name: str) -> HardwareId:
    return hardware_id(LEADER.public_bytes, name)


def announced(leader: SigningKey = LEADER, name: str = "leader") -> KeyAnnouncement:
    """The Leader's sealing key, in force from T0 for a day."""
    draft = KeyAnnouncement(
        leader.public_bytes, hpke_pair(name).public_bytes, T0 - 86_400, T0 + 86_400
    )
    return replace(draft, signature=leader.sign(draft.unsigned()))


def plans_file(folder: Path, *operators: str) -> Path:
    path = folder / "plans.toml"
    path.write_text(
        '[[plan]]\nname = "fleet"\n'
        "series = { minute = { cohort = 0, weight_millionths = 600000 } }\n"
        + "".join(operator_lines(name) for name in operators or ("acme",))
    )
    return path


def operator_lines(name: str) -> str:
    return f'[[operator]]\nname = "{name}"\nkey = "{operator_key(name).public_bytes.hex()}"\n'
