"""Compare the log's releases with the Helper's state: what it signed, it must know."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Final

from aggregator.witness.chain import RollbackSeen
from privacy.signing import verify
from transport.interface import Record, Transport, TransportUnavailable, UnknownTopic
from wire.batch import SignedRelease
from wire.envelope import Kind, unwrap
from wire.rejection import ReportRejected
from wire.topics import RELEASES, TOPICS

from .helper_state import HelperState

GROUP: Final = "helper-releases"
"""It commits nothing: each start reads from the oldest release that the log still has."""

MOST_RECORDS: Final = 2_000_000
MOST_S: Final = 300.0
_POLL_RECORDS: Final = 2_000
_POLL_S: Final = 0.2
_MAX_BYTES: Final = next(topic.max_bytes for topic in TOPICS if topic.name == RELEASES)


def compare_releases(
    log: Transport, helper_pk: bytes, state: HelperState, alive: Callable[[], None]
) -> int:
    """Read the topic to its end.

    helper_pk   the Helper's own identity
    alive       called now and then: reading may take minutes
    Returns     records read; 0 where the log has no such topic
    Raises      RollbackSeen; TransportUnavailable, also where the end is not reached in bounds
    """
    try:
        consumer = log.consumer(GROUP, [RELEASES])
    except UnknownTopic:
        return 0
    read, until_s = 0, time.monotonic() + MOST_S
    with closing(consumer):
        while read < MOST_RECORDS and time.monotonic() < until_s:
            records = consumer.poll(_POLL_RECORDS, _POLL_S)
            for record in records:
                _compare(record, helper_pk, state)
            read += len(records)
            alive()
            if not records and consumer.lag() == 0:
                return read
    raise TransportUnavailable(
        f"{RELEASES}: expected its end within {MOST_RECORDS} records and {MOST_S:.0f} s, "
        f"read {read}"
    )


def _compare(record: Record, helper_pk: bytes, state: HelperState) -> None:
    try:
        kind, core = unwrap(record.value, _MAX_BYTES)
        signed = SignedRelease.decode(core)
    except ReportRejected:
        return
    entry = state.entry_of_batch(signed.release.batch_hash)
    known = entry is not None and SignedRelease.decode(entry).release == signed.release
    if kind is not Kind.RELEASE or known:
        return
    if not verify(helper_pk, signed.release.unsigned(), signed.sig_helper):
        return
    # A restore that was noticed before has closed the windows of all releases until then.
    if record.appended_s >= state.refuse_before_s:
        raise RollbackSeen(
            f"state: expected every release that this Helper signed, found one on the log, offset "
            f"{record.offset} of {RELEASES}, that it does not know: it was rolled "
            "back; nothing is answered: with a witness, start once with --after-restore; without "
            "one, set up a Helper with a new identity"
        )
