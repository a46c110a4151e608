"""The log's own copy of a chain of releases, beside what the parties' transcripts say.

Who reads the log sees what everybody sees: a party that shows one host another chain is told by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aggregator.protocol.directory import PinnedParties
from privacy.signing import verify
from transport.port import Consumer, Record, Transport
from wire.batch import SignedRelease
from wire.envelope import Kind, unwrap
from wire.rejection import ReportRejected
from wire.topics import RELEASES, TOPICS, release_key

from .report_check import OwnReport, ReportVerdict
from .transcript_check import Transcript

MOST_RECORDS: Final = 2_000_000
"""Nearly four years of one release a minute."""
_POLL_RECORDS: Final = 1000
_POLL_S: Final = 0.5
_EMPTY_POLLS: Final = 20
_TOPIC: Final = next(topic for topic in TOPICS if topic.name == RELEASES)


def read_chain(transport: Transport, group: str, series: str, cohort: int) -> list[SignedRelease]:
    """Give every release of one chain that the log holds; what is none is left out.

    group       of readers, a new one: it begins at the oldest record
    Raises      TransportUnavailable
    """
    key = release_key(series, cohort)
    consumer = transport.consumer(group, [RELEASES])
    found: list[SignedRelease] = []
    try:
        for records in _pages(consumer):
            found += _releases(record.value for record in records if record.key == key)
    finally:
        consumer.close()
    return found


def _pages(consumer: Consumer) -> Iterator[list[Record]]:
    """Read to the end; a group that gives its member no partition in ten seconds has none."""
    read, empty = 0, 0
    while read < MOST_RECORDS and empty < _EMPTY_POLLS and consumer.lag() != 0:
        records = consumer.poll(_POLL_RECORDS, _POLL_S)
        read, empty = read + len(records), 0 if records else empty + 1
        yield records


def _releases(values: Iterator[bytes]) -> Iterator[SignedRelease]:
    for value in values:
        try:
            kind, core = unwrap(value, _TOPIC.max_bytes)
            if kind is Kind.RELEASE:
                yield SignedRelease.decode(core)
        except ReportRejected:
            continue


def check_public(
    own: OwnReport,
    leader: Transcript,
    public: list[SignedRelease],
    parties: PinnedParties,
    found: ReportVerdict,
) -> None:
    """Add to a verdict what the log says of the report's release and of its chain."""
    chain = [link.release.release for link in leader.links if link.place[:2] == own.place[:2]]
    after = {release.prev: release.hash() for release in chain}
    for signed in public:
        release = signed.release
        ours = after.get(release.prev)
        if ours is None or ours == release.hash():
            continue
        if verify(parties.leader_pk, release.unsigned(), signed.sig_leader):
            found.failed.append(
                f"the log has another release than the transcript after {release.prev.hex()}, "
                "under the Leader's signature: the Leader told two stories"
            )
    if found.release is None or found.failed:
        return
    if any(signed.release.hash() == found.release for signed in public):
        found.held.append("the log: its topic of releases has this release, as every reader sees")
    else:
        found.open.append("the log has no such release: not yet, or it keeps none so long")
