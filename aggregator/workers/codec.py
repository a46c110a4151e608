"""Words and orders as messages of `workers.proto`, and back, with bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, assert_never

from google.protobuf.message import DecodeError

from aggregator.protocol.answers import HOST_ID_BYTES, BatchKey
from wire.batch import ENTRY
from wire.bounds import MAX_COUNTER, MAX_TIME

from . import workers_pb2 as pb
from .words import (
    CLAIM_BYTES,
    NAME_BYTES,
    Claim,
    EpochUnknown,
    Frozen,
    Granted,
    NamedHosts,
    OpenedEpoch,
    Order,
    PartitionSum,
    Rebuild,
    Refusals,
    SignedRoster,
    SignedTask,
    SumWanted,
    Superseded,
    WindowEnded,
    Word,
)

_ID_BYTES: Final = 32


class BadMessage(Exception):
    """Bytes that are no message of a worker or coordinator; says what was expected and came."""


def need_bytes(content: bytes, size: int, name: str) -> bytes:
    """Give the bytes back. Raises BadMessage unless they are of this length."""
    if len(content) != size:
        raise BadMessage(f"{name}: expected {size} bytes, got {len(content)}")
    return content


def _rows(content: bytes, size: int, name: str) -> bytes:
    if len(content) % size:
        raise BadMessage(f"{name}: expected rows of {size} bytes, got {len(content)} bytes")
    return content


def _split(content: bytes, name: str) -> list[bytes]:
    _rows(content, NAME_BYTES, name)
    return [content[at : at + NAME_BYTES] for at in range(0, len(content), NAME_BYTES)]


def _at_most(number: int, most: int, name: str) -> int:
    if number > most:
        raise BadMessage(f"{name}: expected at most {most}, got {number}")
    return number


def _seconds(number: float, name: str) -> float:
    if not 0 <= number <= MAX_TIME:  # nor is what is no number
        raise BadMessage(f"{name}: expected seconds from 0 to {MAX_TIME}, got {number}")
    return number


def _key(key: BatchKey) -> pb.WindowKey:
    return pb.WindowKey(task_id=key.task_id, cohort=key.cohort, window=key.window)


def _key_of(key: pb.WindowKey) -> BatchKey:
    window = _at_most(key.window, MAX_TIME, "window")
    return BatchKey(need_bytes(key.task_id, _ID_BYTES, "task_id"), key.cohort, window)


def _claim(claim: Claim) -> pb.Claim:
    return pb.Claim(partition=claim.partition, number=claim.number)


def _claim_of(claim: pb.Claim) -> Claim:
    return Claim(claim.partition, need_bytes(claim.number, CLAIM_BYTES, "claim"))


# Words


def encode_word(word: Word) -> pb.Word:
    """Make the message of a word."""
    return pb.Word(
        claims=map(_claim, word.claims),
        lag=word.lag,
        # A log's own times may be anything, and a word that is refused would be said for ever.
        appended_s=[min(max(0.0, at), MAX_TIME) for at in word.appended_s],
        named=[
            pb.NamedHosts(
                key=_key(named.key),
                claim=_claim(named.claim),
                entries=named.entries,
                late_s=named.late_s,
            )
            for named in word.named
        ],
        refusals=[
            pb.Refusals(key=_key(r.key), claim=_claim(r.claim), reasons=r.reasons)
            for r in word.refusals
        ],
        rejected=word.rejected,
        wanted=b"".join(word.wanted),
        dropped=b"".join(word.dropped),
        sums=[
            pb.PartitionSum(
                key=_key(part.key), claim=_claim(part.claim), hosts=part.hosts, vector=part.vector
            )
            for part in word.sums
        ],
    )


def decode_word(message: pb.Word) -> Word:
    """Read the message of a word.

    Raises      BadMessage
    """
    return Word(
        [_claim_of(claim) for claim in message.claims],
        message.lag if message.HasField("lag") else None,
        [_seconds(at, "appended_s") for at in message.appended_s],
        [_named_of(named) for named in message.named],
        [Refusals(_key_of(r.key), _claim_of(r.claim), dict(r.reasons)) for r in message.refusals],
        dict(message.rejected),
        _split(message.wanted, "wanted"),
        _split(message.dropped, "dropped"),
        [PartitionSum(_key_of(p.key), _claim_of(p.claim), p.hosts, p.vector) for p in message.sums],
    )


def _named_of(named: pb.NamedHosts) -> NamedHosts:
    entries = _rows(named.entries, ENTRY.itemsize, "entries")
    late_s = _seconds(named.late_s, "late_s") if named.HasField("late_s") else None
    return NamedHosts(_key_of(named.key), _claim_of(named.claim), entries, late_s)


# Orders


def encode_order(order: Order) -> pb.Order:
    """Make the message of an order."""
    match order:
        case SignedTask():
            return pb.Order(task=order.content)
        case SignedRoster():
            return pb.Order(roster=order.content)
        case OpenedEpoch():
            return pb.Order(epoch=_epoch(order))
        case EpochUnknown():
            return pb.Order(epoch_unknown=order.name)
        case Rebuild():
            rebuild = pb.Rebuild(
                key=_key(order.key), partition=order.partition, reports=order.reports
            )
            return pb.Order(rebuild=rebuild)
        case Granted():
            return pb.Order(granted=_claim(order.claim))
        case Superseded():
            return pb.Order(superseded=_claim(order.claim))
        case Frozen():
            return pb.Order(frozen=_key(order.key))
        case SumWanted():
            wanted = pb.SumWanted(key=_key(order.key), claim=_claim(order.claim), hosts=order.hosts)
            return pb.Order(sum_wanted=wanted)
        case WindowEnded():
            return pb.Order(settled=pb.Settled(key=_key(order.key), until_s=order.until_s))
        case _:
            assert_never(order)


def _epoch(epoch: OpenedEpoch) -> pb.OpenedEpoch:
    return pb.OpenedEpoch(
        host_id=epoch.host_id,
        epoch_id=epoch.epoch_id,
        epoch_hash=epoch.epoch_hash,
        not_before=epoch.not_before,
        not_after=epoch.not_after,
        ledger_ctr=epoch.ledger_ctr,
        dead=epoch.dead,
        key=epoch.key or b"",
    )


def decode_orders(messages: Iterable[pb.Order]) -> Sequence[Order]:
    """Read the messages of orders.

    Raises      BadMessage
    """
    return [_order_of(message) for message in messages]


def _order_of(message: pb.Order) -> Order:
    match message.WhichOneof("order"):
        case "task":
            return SignedTask(message.task)
        case "roster":
            return SignedRoster(message.roster)
        case "epoch":
            return _epoch_of(message.epoch)
        case "epoch_unknown":
            return EpochUnknown(need_bytes(message.epoch_unknown, NAME_BYTES, "epoch"))
        case "rebuild":
            rebuild = message.rebuild
            reports = _rows(rebuild.reports, NAME_BYTES, "reports")
            return Rebuild(_key_of(rebuild.key), rebuild.partition, reports)
        case "granted":
            return Granted(_claim_of(message.granted))
        case "superseded":
            return Superseded(_claim_of(message.superseded))
        case "frozen":
            return Frozen(_key_of(message.frozen))
        case "sum_wanted":
            wanted = message.sum_wanted
            hosts = _rows(wanted.hosts, HOST_ID_BYTES, "hosts")
            return SumWanted(_key_of(wanted.key), _claim_of(wanted.claim), hosts)
        case "settled":
            until_s = _at_most(message.settled.until_s, MAX_TIME, "until_s")
            return WindowEnded(_key_of(message.settled.key), until_s)
        case _:
            raise BadMessage("order: expected one of this release, got another")


def _epoch_of(epoch: pb.OpenedEpoch) -> OpenedEpoch:
    return OpenedEpoch(
        need_bytes(epoch.host_id, HOST_ID_BYTES, "host_id"),
        need_bytes(epoch.epoch_id, HOST_ID_BYTES, "epoch_id"),
        need_bytes(epoch.epoch_hash, _ID_BYTES, "epoch_hash"),
        _at_most(epoch.not_before, MAX_TIME, "not_before"),
        _at_most(epoch.not_after, MAX_TIME, "not_after"),
        _at_most(epoch.ledger_ctr, MAX_COUNTER, "ledger_ctr"),
        epoch.dead,
        None if epoch.dead else need_bytes(epoch.key, _ID_BYTES, "key"),
    )


def parse_request(raw: bytes) -> pb.ExchangeRequest:
    """Read a request. Raises BadMessage."""
    try:
        return pb.ExchangeRequest.FromString(raw)
    except DecodeError:
        raise BadMessage("expected a word of a worker, got other bytes") from None


def parse_response(raw: bytes) -> pb.ExchangeResponse:
    """Read an answer. Raises BadMessage."""
    try:
        return pb.ExchangeResponse.FromString(raw)
    except DecodeError:
        raise BadMessage("expected an answer of a coordinator, got other bytes") from None
