"""A host's enrolment, its next key (ledger first, then key file) and its end. The same call again
ends one that a crash cut off, and no state in between publishes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from privacy.sealing import seal_message
from privacy.signing import SigningKey, verify
from transport.files.keyfiles import (
    NEW_ID,
    HostKey,
    KeyFileAbsent,
    KeyFileRefused,
    destroy_key,
    host_binding,
    load_host_key,
    read_host_key,
    same_machine_id,
    shared_gpus,
    supersede_host_key,
    sweep_leftovers,
    write_host_key,
)
from transport.files.private_files import JoinToken
from transport.interface import Transport, create_topics
from wire import labels
from wire.catalogue import Catalogue
from wire.envelope import Kind, Signed, unwrap, wrap
from wire.epoch import KeyAnnouncement
from wire.fields import HostId, hardware_id, host_id
from wire.join import JoinRequest, SealedJoin
from wire.rejection import ReportRejected
from wire.roster import MAX_HARDWARE_IDS, EntryAnswer, GpuModels
from wire.topics import ENTRIES, JOINS, KEYS, ROSTERS, TOPICS, join_key

from .bound_gpus import ListedGpu, write_record
from .config import AgentConfig
from .journal import older
from .ledger.ledger import Ledger
from .ledger.ledger_db import connect, transaction
from .ledger.ledger_loss import Fence, Identity, carry_over
from .ledger.ledger_records import KnownRoster, LedgerMissing, LedgerRefused
from .protocol.epochs import Host, HpkeDirectory, PartyKeys
from .protocol.roster_book import RosterBook
from .protocol.task_check import Pins

_MACHINE_LABEL = b"pointillist/machine/1"
_KEYS_WAIT_S: Final = 5.0
"""A cluster lets a new member in only after seconds."""


_NO_COPY: Final = (
    f"where this is a copy, give it a machine id first ({NEW_ID}). Else a new key takes this one's "
    "place: `pointillist agent rekey`"
)
_MAX_BYTES = {topic.name: topic.max_bytes for topic in TOPICS}


class NoSealingKey(Exception):
    """The log has no key in force of the Leader that a request is for."""


def hardware_names(machine: str, gpu_uuids: Sequence[str]) -> tuple[str, ...]:
    """Name this machine's parts: its id hashed, as its manual asks, UUIDs however they were typed.
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
    """Make the request, signed by token and host, always the same; parts leave as hashes."""
    salt = token.voucher.leader_pk
    parts = b"".join(sorted(hardware_id(salt, name) for name in hardware))
    public = host.signing_key.public_bytes
    plain = JoinRequest(public, parts, gpu_models, token.voucher)
    message = plain.unsigned()
    return dataclasses.replace(
        plain, token_signature=token.signing.sign(message), signature=host.signing_key.sign(message)
    )


def seal_join(request: JoinRequest, key: KeyAnnouncement) -> SealedJoin:
    plain = SealedJoin(request.ed25519_pk, key.key_id, b"")
    return dataclasses.replace(
        plain, sealed=seal_message(key.hpke_pk, request.padded(), plain.info())
    )


def send_join(transport: Transport, request: JoinRequest, pins: Pins, now_s: int) -> None:
    """Publish a request, sealed to its Leader's key. Raises NoSealingKey, TransportUnavailable."""
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
    """What the log says of a host: its answer, and the Leader's newest roster, which decides."""

    answer: EntryAnswer | None = None
    roster: KnownRoster | None = None

    @property
    def series(self) -> tuple[str, ...]:
        """Series in which the roster has the host; none where it does not have it."""
        plans = () if self.roster is None else self.roster.plans.values()
        return tuple(sorted(series for plan in plans for series in plan or ()))

    @property
    def settled(self) -> bool:
        return self.answer is not None and bool(self.series)


def find_standing(
    transport: Transport, request: JoinRequest, pins: Pins, timeout_s: float
) -> JoinStanding:
    """Wait for answer and roster, or `timeout_s` without a record. Raises TransportUnavailable."""
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


def newest_roster(transport: Transport, host: HostId, pins: Pins) -> KnownRoster | None:
    """Give the newest roster on the log that has a host. Raises TransportUnavailable."""
    rosters = RosterBook(pins, (host,), weekly=False)
    consumer = transport.consumer(f"join-{secrets.token_hex(6)}", (ROSTERS,))
    try:
        while records := consumer.poll(100, 1.0):
            for record in records:
                with suppress(ReportRejected):
                    rosters.add(unwrap(record.value, _MAX_BYTES[ROSTERS])[1])
    finally:
        consumer.close()
    views = [view for leader in sorted(pins.leaders) if (view := rosters.newest(leader))]
    having = [view for view in views if view.plans[host]]
    return max(having, key=lambda view: view.effective_from, default=None)


def _answer(value: bytes, request: JoinRequest, pins: Pins) -> EntryAnswer | None:
    try:
        envelope = Signed.decode(unwrap(value, _MAX_BYTES[ENTRIES])[1], labels.ENTRY_ANSWER)
        message = envelope.unsigned()
        leader_pk = request.voucher.leader_pk  # which the answer names, by the request's hash
        leader = leader_pk in pins.leaders and verify(leader_pk, message, envelope.sig_leader)
        helper = any(verify(pk, message, envelope.sig_helper) for pk in pins.helpers)
        if not (leader and helper):
            return None
        answer = EntryAnswer.decode_body(envelope.body)
    except ReportRejected:
        return None
    return answer if answer.request_hash == request.hash() else None


@dataclass(frozen=True, slots=True)
class Rekeyed:
    """What was done; old: None after an earlier call, carried: there was a ledger to go on with."""

    old: HostId | None
    new: HostId
    carried: bool


def with_key(config: AgentConfig, key_file: Path) -> AgentConfig:
    return replace(config, host=replace(config.host, key_file=key_file.absolute()))


def rekey(config: AgentConfig, next_key: Path, binding: bytes, now_s: int) -> Rekeyed:
    """Put the new key, bound to this machine as it is now, and the ledger in the old one's place.
    Raises      LedgerRefused, KeyFileRefused: nothing changed, or the same call again ends it
    """
    place = config.host.key_file
    if place.exists() and next_key.exists() and place.samefile(next_key):
        raise KeyFileRefused(f"{next_key}: is the key in use; make a new one in another folder")
    new, old = load_host_key(next_key, binding), _old_key(place)
    if old is not None and _id(old) == _id(new):  # an earlier call came as far as this
        before, carried = None, old.ledger_exists
    else:
        before, carried = old, _carry(config, old, new, now_s)
        if old is not None and not same_machine_id(old.binding, new.binding):
            with _agent_stopped(config):
                _drop_measured(config)  # it may be another machine's, which reports it, too
        # With a ledger or without: a place left empty could not be told from a host without a key.
        put = write_host_key if old is None else supersede_host_key
        put(place, replace(new, ledger_exists=carried))
    made = with_key(config, next_key).gpus_file
    if made.exists():  # which GPUs the new key is bound to, where host.gpus is "auto"
        made.replace(config.gpus_file)
    sweep_leftovers(place.parent)
    destroy_key(next_key, in_place=True)
    return Rekeyed(None if before is None else _id(before), _id(new), carried)


def end_of_earlier(config: AgentConfig, next_key: Path, binding: bytes) -> Rekeyed | None:
    """End a call cut off while it destroyed the next key; None: none was."""
    content = next_key.read_bytes()
    if not content or any(content):
        return None
    key = load_host_key(config.host.key_file, binding)
    destroy_key(next_key, in_place=True)
    return Rekeyed(None, _id(key), key.ledger_exists)


def _old_key(path: Path) -> HostKey | None:
    try:
        return read_host_key(path)
    except KeyFileAbsent:
        return None


def _carry(config: AgentConfig, old: HostKey | None, new: HostKey, now_s: int) -> bool:
    ledger, fence = config.ledger_file, config.fence_file
    known = fence.exists() or (old is not None and old.ledger_exists)
    if not ledger.exists() and not known:
        if old is None:
            raise KeyFileAbsent(f"{config.host.key_file}: no such key file, and no ledger of one")
        return False
    if not ledger.exists():
        raise LedgerMissing(f"expected the ledger {ledger}, of which key or fence know")
    # Without the old key the ledger must be the new identity's: an earlier call was cut off.
    before = new if old is None else old
    carry_over(ledger, fence, _identity(before), _identity(new), now_s)
    return True


def _identity(key: HostKey) -> Identity:
    return Identity(_id(key), key.binding)


def _id(key: HostKey) -> HostId:
    return host_id(key.signing.public_bytes)


@dataclass(frozen=True, slots=True)
class Retired:
    """What was destroyed, and what stays. `host`: None where its key was gone already."""

    host: HostId | None
    destroyed: tuple[Path, ...]
    kept: tuple[Path, ...]


def retire(config: AgentConfig) -> Retired:
    """Destroy key, raw data, waiting reports. Raises LedgerBusy; KeyFileRefused, OSError: again."""
    with _agent_stopped(config):
        gone = _drop_measured(config)
        host = _destroy_key(config.host.key_file)
    keys = (config.host.key_file,) if host is not None else ()
    kept = tuple(path for path in (config.ledger_file, config.fence_file) if path.exists())
    return Retired(host, (*keys, *gone), kept)


@dataclass(frozen=True, slots=True)
class Disowned:
    """The host that this machine was a copy of, its own, and what of the copy was destroyed."""

    copied: HostId
    new: HostId
    destroyed: tuple[Path, ...]
    ledger: bool


def disown(
    config: AgentConfig, machine: str, here: Sequence[ListedGpu], *, auto: bool, now_s: int
) -> Disowned:
    """Give a copied machine a key of its own: what was copied goes, what was spent stays spent.

    The ledger is recovered for the new key: windows of the past and new or heavier series are not
    taken, so that a machine which is no copy gains nothing by calling itself one.
    here        this machine's GPUs, which the key is bound to with `auto`
    Raises      KeyFileRefused: it is no copy; LedgerRefused; OSError. Cut off, the same call again
    """
    place, known = config.host.key_file, config.host.gpu_uuids
    old = read_host_key(place)
    there = [gpu.uuid for gpu in here]
    lower = [uuid.lower() for uuid in there]
    typed = [uuid for uuid in known if uuid.strip().lower() in lower]
    binding = host_binding(machine, there)
    if same_machine_id(old.binding, binding):
        raise KeyFileRefused(f"{place}: made under this machine's id; {_NO_COPY}")
    if shared := shared_gpus(old.binding, host_binding(machine, [*there, *lower, *typed])):
        raise KeyFileRefused(f"{place}: made with {shared} of this machine's GPUs; {_NO_COPY}")
    if not auto and len(typed) < len(known):
        named = ", ".join(there) or "none"
        raise KeyFileRefused(
            f"host.gpu_uuids names GPUs that are not this machine's ({named}); name its own, or "
            'gpus = "auto"'
        )
    new = HostKey(
        SigningKey.generate(),
        binding if auto else host_binding(machine, known),
        old.ledger_exists or config.fence_file.exists() or config.ledger_file.exists(),
    )
    with _agent_stopped(config):
        gone = _drop_measured(config)
    if auto:
        write_record(config.gpus_file, here)
    if new.ledger_exists:
        Ledger.recover(
            config.ledger_file, config.fence_file, hosts=[_id(new)], binding=new.binding,
            now_s=now_s, signed_time_s=0, known=(),
        ).close()  # fmt: skip
    supersede_host_key(place, new)
    return Disowned(_id(old), _id(new), gone, new.ledger_exists)


def _drop_measured(config: AgentConfig) -> tuple[Path, ...]:
    """Destroy raw data, and what was sealed and did not leave. Raises OSError."""
    _drop_spool(config.ledger_file)
    raw = (
        config.windows_file, config.history_file, config.journal_file,
        older(config.journal_file), config.kernel_names_file, config.gpus_file,
    )  # fmt: skip
    beside = ("", "-wal", "-shm", "-journal")  # what SQLite keeps
    places = [Path(f"{file}{suffix}") for file in raw for suffix in beside]
    gone = [path for path in places if path.exists()]
    for path in gone:
        path.unlink()
    return tuple(gone)


@contextlib.contextmanager
def _agent_stopped(config: AgentConfig) -> Iterator[None]:
    if not config.fence_file.exists():
        yield
        return
    fence = Fence.open(config.fence_file)
    try:
        yield
    finally:
        fence.close()


def _drop_spool(ledger: Path) -> None:
    """See that what was sealed and did not leave never does; a damaged ledger is sent by nobody."""
    with (
        contextlib.suppress(LedgerRefused),
        contextlib.closing(connect(ledger, create=False)) as db,
        transaction(db),
    ):
        db.execute("DELETE FROM spool")


def _destroy_key(path: Path) -> HostId | None:
    try:
        host = host_id(read_host_key(path).signing.public_bytes)
    except KeyFileAbsent:
        return None
    destroy_key(path)
    return host
