"""Join requests from the log into the folder that `leader roster build` reads, within bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aggregator.state.state_file import write_durably
from privacy.sealing import HpkeKeyPair, SealError
from transport.files.keyfiles import load_hpke_key
from transport.port import Record, Transport
from wire.envelope import Kind, unwrap
from wire.fields import key_id
from wire.join import PADDED_BYTES, JoinRequest, SealedJoin
from wire.rejection import Reason, ReportRejected
from wire.topics import JOINS, TOPICS

from .enrolment import check_request, load_enrolment, read_requests, read_spent

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
                    request = open_join(_core(record), pairs)
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


def _core(record: Record) -> bytes:
    kind, core = unwrap(record.value, _TOPIC.max_bytes)
    if kind is not Kind.JOIN_REQUEST:
        raise ReportRejected(Reason.ENVELOPE, "a join request", kind.name)
    return core
