"""Enrolment: a host asks by a signed request with a one-use token; the answer is countersigned."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections import Counter
from collections.abc import Sequence

from privacy.signing import verify
from transport.port import Transport
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Kind, Signed, unwrap, wrap
from wire.rejection import ReportRejected
from wire.roster import EntryAnswer, GpuModels, JoinRequest
from wire.topics import ENTRIES, JOINS, TOPICS, join_key

from .protocol.epochs import Host
from .protocol.task_check import Pins

_MACHINE_LABEL = b"pointillist/machine/1"
_MAX_ENTRY_BYTES = next(topic.max_bytes for topic in TOPICS if topic.name == ENTRIES)


def hardware_ids(machine: str, gpu_uuids: Sequence[str]) -> tuple[str, ...]:
    """Name this machine's hardware; the machine id leaves as a hash, as its manual asks."""
    digest = hashlib.sha256(_MACHINE_LABEL + machine.encode()).hexdigest()[:32]
    return (f"machine-{digest}", *sorted(gpu_uuids))


def gpu_counts(catalogue: Catalogue, models: Sequence[str]) -> GpuModels:
    """Count GPUs by their place in the catalogue's table; unknown models count as "other"."""
    classes = list(catalogue.classes("gpu_model"))
    counts = Counter(classes.index(m if m in classes else "other") for m in models)
    return tuple(sorted(counts.items()))


def join_request(
    host: Host, hardware: Sequence[str], token: bytes, gpu_models: GpuModels
) -> JoinRequest:
    """Make the signed request; it is the same bytes for the same token."""
    plain = JoinRequest(host.signing_key.public_bytes, tuple(hardware), token, gpu_models)
    return dataclasses.replace(plain, signature=host.signing_key.sign(plain.unsigned()))


def send_join(transport: Transport, request: JoinRequest) -> None:
    """Publish a request durably.

    Raises      TransportUnavailable
    """
    for topic in TOPICS:
        transport.create_topic(topic.name, topic.partitions)
    producer = transport.producer()
    producer.send(JOINS, join_key(request.ed25519_pk), wrap(Kind.JOIN_REQUEST, request.encode()))
    producer.close()


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
        envelope = Signed.decode(unwrap(value, _MAX_ENTRY_BYTES)[1], labels.ENTRY_ANSWER)
        message = envelope.unsigned()
        leader = any(verify(pk, message, envelope.sig_leader) for pk in pins.leaders)
        helper = any(verify(pk, message, envelope.sig_helper) for pk in pins.helpers)
        if not (leader and helper):
            return None
        answer = EntryAnswer.decode_body(envelope.body)
    except ReportRejected:
        return None
    return answer if answer.request_hash == request.hash() else None
