"""Join requests from the log into the folder that `leader roster build` reads, within bounds."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from transport.port import Record, Transport
from wire.envelope import Kind, unwrap
from wire.rejection import Reason, ReportRejected
from wire.roster import JoinRequest
from wire.topics import JOINS, TOPICS

from .enrolment import check_request, load_enrolment, read_spent, token_hash
from .state_file import write_durably

GROUP: Final = "roster-build"
MAX_RECORDS: Final = 100_000
"""Of one run: as many as a fleet has hosts; what is left comes with the next run."""

POLL_RECORDS: Final = 1000
POLL_S: Final = 0.5
_TOPIC: Final = next(topic for topic in TOPICS if topic.name == JOINS)


def fetch_requests(transport: Transport, plans_file: Path, folder: Path) -> Mapping[str, int]:
    """Write each sound request of the log as HASH.join; offsets are committed behind them.

    Anyone who may write to the log may write nonsense: a request whose signature or token does not
    hold, or whose token another request of the folder or an earlier roster used, is counted and
    left out, and stops nobody else's.
    Returns     `fetched`, and reason -> requests left out
    Raises      EnrolmentError, TransportUnavailable, OSError
    """
    enrolment = load_enrolment(plans_file)
    folder.mkdir(parents=True, exist_ok=True)
    used = set(read_spent(plans_file))
    used |= {token_hash(JoinRequest.decode(p.read_bytes())) for p in folder.glob("*.join")}
    transport.create_topic(_TOPIC.name, _TOPIC.partitions)
    consumer = transport.consumer(GROUP, [JOINS])
    found: Counter[str] = Counter(fetched=0)
    try:
        read = 0
        while read < MAX_RECORDS and (records := consumer.poll(POLL_RECORDS, POLL_S)):
            read += len(records)
            for record in records:
                try:
                    raw = _sound(record)
                    request, _ = check_request(raw, enrolment)
                    if token_hash(request) in used:
                        raise ReportRejected(Reason.JOIN_TOKEN, "a token not used", "a used one")
                except ReportRejected as refusal:
                    found[refusal.reason.value] += 1
                    continue
                used.add(token_hash(request))
                name = hashlib.sha256(raw).hexdigest()[:32]
                write_durably(folder / f"{name}.join", raw)
                found["fetched"] += 1
            consumer.commit(consumer.positions())
    finally:
        consumer.close()
    return found


def _sound(record: Record) -> bytes:
    kind, core = unwrap(record.value, _TOPIC.max_bytes)
    if kind is not Kind.JOIN_REQUEST:
        raise ReportRejected(Reason.ENVELOPE, "a join request", kind.name)
    return core
