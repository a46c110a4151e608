"""Enrolment: a host asks by a request that its token signs, sealed to the Leader of that token."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from privacy.sealing import seal_message
from privacy.signing import verify
from transport.join_token import JoinToken
from transport.port import Transport
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Kind, Signed, unwrap, wrap
from wire.epoch import KeyAnnouncement
from wire.ids import hardware_id
from wire.join import JoinRequest, SealedJoin
from wire.rejection import ReportRejected
from wire.roster import MAX_HARDWARE_IDS, EntryAnswer, GpuModels
from wire.topics import ENTRIES, JOINS, KEYS, TOPICS, join_key

from .protocol.epochs import Host, HpkeDirectory, PartyKeys
from .protocol.task_check import Pins

_MACHINE_LABEL = b"pointillist/machine/1"
_KEYS_WAIT_S: Final = 0.5

_MAX_BYTES = {topic.name: topic.max_bytes for topic in TOPICS}


class NoSealingKey(Exception):
    """The log has no key in force of the Leader that a request is for."""


def hardware_names(machine: str, gpu_uuids: Sequence[str]) -> tuple[str, ...]:
    """Name the parts of this machine; the machine id is hashed first, as its manual asks.

    A GPU has one name however somebody typed it: its UUID in lower case, without spaces around it.
    Raises      ValueError where the GPUs are more than a roster holds, or one is named twice
    """
    gpus = [uuid.strip().lower() for uuid in gpu_uuids]
    if len(gpus) >= MAX_HARDWARE_IDS or len(set(gpus)) != len(gpus):
        most = MAX_HARDWARE_IDS - 1
        raise ValueError(f"expected at most {most} GPU UUIDs, each once, got {len(gpu_uuids)}")
    digest = hashlib.sha256(_MACHINE_LABEL + machine.encode()).hexdigest()[:32]
    return (f"machine-{digest}", *gpus)


def gpu_counts(catalogue: Catalogue, models: Sequence[str]) -> GpuModels:
    """Count GPUs by their place in the catalogue's table; unknown models count as "other"."""
    classes = list(catalogue.classes("gpu_model"))
    counts = Counter(classes.index(m if m in classes else "other") for m in models)
    return tuple(sorted(counts.items()))


def join_request(
    host: Host, hardware: Sequence[str], token: JoinToken, gpu_models: GpuModels
) -> JoinRequest:
    """Make the request, signed by token and host; it is the same bytes for the same token.

    hardware    names of the machine's parts; they leave as hashes
    """
    salt = token.voucher.leader_pk
    parts = b"".join(sorted(hardware_id(salt, name) for name in hardware))
    public = host.signing_key.public_bytes
    plain = JoinRequest(public, parts, gpu_models, token.voucher)
    message = plain.unsigned()
    return dataclasses.replace(
        plain,
        token_signature=token.signing.sign(message),
        signature=host.signing_key.sign(message),
    )


def seal_join(request: JoinRequest, key: KeyAnnouncement) -> SealedJoin:
    """Seal a request to an announced key of its Leader."""
    plain = SealedJoin(request.ed25519_pk, key.key_id, b"")
    return dataclasses.replace(
        plain, sealed=seal_message(key.hpke_pk, request.padded(), plain.info())
    )


def send_join(transport: Transport, request: JoinRequest, pins: Pins, now_s: int) -> None:
    """Publish a request durably, sealed to the key that its Leader has announced.

    Raises      NoSealingKey, TransportUnavailable
    """
    for topic in TOPICS:
        transport.create_topic(topic.name, topic.partitions)
    sealed = seal_join(request, _leaders_key(transport, request.voucher.leader_pk, pins, now_s))
    producer = transport.producer()
    producer.send(JOINS, join_key(request.ed25519_pk), wrap(Kind.JOIN_REQUEST, sealed.encode()))
    producer.close()


def _leaders_key(transport: Transport, leader_pk: bytes, pins: Pins, now_s: int) -> KeyAnnouncement:
    """Find the Leader's key in force; what others write on the topic is passed over."""
    directory = HpkeDirectory(pins)
    consumer = transport.consumer(f"join-{secrets.token_hex(6)}", (KEYS,))
    try:
        while records := consumer.poll(100, _KEYS_WAIT_S):
            for record in records:
                with suppress(ReportRejected):
                    kind, core = unwrap(record.value, _MAX_BYTES[KEYS])
                    if kind is Kind.KEY_ANNOUNCEMENT:
                        directory.add(KeyAnnouncement.decode(core))
    finally:
        consumer.close()
    keys = directory.sealing_keys(PartyKeys(leader_pk, b""), now_s)
    if keys is None:
        raise NoSealingKey("expected an announced key of the Leader in force now, found none")
    return keys.leader


def find_answer(
    transport: Transport, request: JoinRequest, pins: Pins, timeout_s: float
) -> EntryAnswer | None:
    """Wait for the answer that both pinned parties have signed; None when none came.

    Raises      TransportUnavailable
    """
    consumer = transport.consumer(f"join-{secrets.token_hex(6)}", (ENTRIES,))
    try:
        while records := consumer.poll(100, timeout_s):
            for record in records:
                answer = _answer(record.value, request, pins)
                if answer is not None:
                    return answer
    finally:
        consumer.close()
    return None


def _answer(value: bytes, request: JoinRequest, pins: Pins) -> EntryAnswer | None:
    try:
        envelope = Signed.decode(unwrap(value, _MAX_BYTES[ENTRIES])[1], labels.ENTRY_ANSWER)
        message = envelope.unsigned()
        leader = any(verify(pk, message, envelope.sig_leader) for pk in pins.leaders)
        helper = any(verify(pk, message, envelope.sig_helper) for pk in pins.helpers)
        if not (leader and helper):
            return None
        answer = EntryAnswer.decode_body(envelope.body)
    except ReportRejected:
        return None
    return answer if answer.request_hash == request.hash() else None
