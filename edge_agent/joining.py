"""Enrolment: a host asks by a request that its token signs, sealed to the Leader of that token."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from privacy.sealing import seal_message
from privacy.signing import verify
from transport.files.private_files import JoinToken
from transport.port import Transport, create_topics
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Kind, Signed, unwrap, wrap
from wire.epoch import KeyAnnouncement
from wire.fields import HostId, hardware_id, host_id
from wire.join import JoinRequest, SealedJoin
from wire.rejection import ReportRejected
from wire.roster import MAX_HARDWARE_IDS, EntryAnswer, GpuModels
from wire.topics import ENTRIES, JOINS, KEYS, ROSTERS, TOPICS, join_key

from .protocol.epochs import Host, HpkeDirectory, PartyKeys
from .protocol.roster_book import RosterBook, RosterView
from .protocol.task_check import Pins

_MACHINE_LABEL = b"pointillist/machine/1"
_KEYS_WAIT_S: Final = 5.0
"""A cluster lets a new member in only after seconds."""


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
    create_topics(transport)
    sealed = seal_join(request, _leaders_key(transport, request.voucher.leader_pk, pins, now_s))
    producer = transport.producer()
    producer.send(JOINS, join_key(request.ed25519_pk), wrap(Kind.JOIN_REQUEST, sealed.encode()))
    producer.close()


def _leaders_key(transport: Transport, leader_pk: bytes, pins: Pins, now_s: int) -> KeyAnnouncement:
    """Find the Leader's key in force; what others write on the topic is passed over."""
    directory, parties = HpkeDirectory(pins), PartyKeys(leader_pk, b"")
    found = None
    consumer = transport.consumer(f"join-{secrets.token_hex(6)}", (KEYS,))
    try:
        while records := consumer.poll(100, _KEYS_WAIT_S if found is None else 0.0):
            for record in records:
                with suppress(ReportRejected):
                    kind, core = unwrap(record.value, _MAX_BYTES[KEYS])
                    if kind is Kind.KEY_ANNOUNCEMENT:
                        directory.add(KeyAnnouncement.decode(core))
            found = directory.sealing_keys(parties, now_s)
    finally:
        consumer.close()
    if found is None:
        raise NoSealingKey("expected an announced key of the Leader in force now, found none")
    return found.leader


@dataclass(slots=True)
class JoinStanding:
    """What the log says about a host that asked.

    answer      what both pinned parties promised; None: nothing so far
    roster      the Leader's newest under both signatures: who takes part, it says, not the answer
    """

    answer: EntryAnswer | None = None
    roster: RosterView | None = None

    @property
    def series(self) -> tuple[str, ...]:
        """Series in which the roster has the host; none where it does not have it."""
        plans = None if self.roster is None else self.roster.memberships[0]
        return tuple(sorted(plans or ()))

    @property
    def settled(self) -> bool:
        """Whether there is nothing left to wait for."""
        return self.answer is not None and bool(self.series)


def find_standing(
    transport: Transport, request: JoinRequest, pins: Pins, timeout_s: float
) -> JoinStanding:
    """Wait until a request is answered and a roster has its host, or nothing more comes.

    timeout_s   without a record
    Raises      TransportUnavailable
    """
    standing = JoinStanding()
    rosters = RosterBook(pins, (host_id(request.ed25519_pk),), weekly=False)
    consumer = transport.consumer(f"join-{secrets.token_hex(6)}", (ENTRIES, ROSTERS))
    try:
        while records := consumer.poll(100, 0.0 if standing.settled else timeout_s):
            for record in records:
                if record.topic == ENTRIES:
                    standing.answer = _answer(record.value, request, pins) or standing.answer
                else:
                    with suppress(ReportRejected):
                        rosters.add(unwrap(record.value, _MAX_BYTES[ROSTERS])[1])
            standing.roster = rosters.newest(request.voucher.leader_pk)
    finally:
        consumer.close()
    return standing


def newest_roster(transport: Transport, host: HostId, pins: Pins) -> RosterView | None:
    """Give the newest roster on the log that has a host, of any pair of pinned parties.

    Raises      TransportUnavailable
    """
    rosters = RosterBook(pins, (host,), weekly=False)
    consumer = transport.consumer(f"roster-{secrets.token_hex(6)}", (ROSTERS,))
    try:
        while records := consumer.poll(100, 1.0):
            for record in records:
                with suppress(ReportRejected):
                    rosters.add(unwrap(record.value, _MAX_BYTES[ROSTERS])[1])
    finally:
        consumer.close()
    views = [view for leader in sorted(pins.leaders) if (view := rosters.newest(leader))]
    having = [view for view in views if view.memberships[0]]
    return max(having, key=lambda view: view.effective_from, default=None)


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
