"""One host's report against both parties' transcripts: what holds, what does not, what is open.

The host brings what it kept when it sealed the report. Nothing in a transcript is believed for
itself: signatures of the pinned parties bind the release, the release binds batch and share by
hash, and in these stands the host. The log's copy of a chain is what everybody sees: a party that
shows one host another chain is told by it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from aggregator.protocol.directory import PinnedParties
from privacy.signing import verify
from transport.interface import Transport
from wire.batch import Batch, SignedRelease, SignedShare
from wire.envelope import Kind, unwrap
from wire.fields import NO_SIGNATURE
from wire.rejection import ReportRejected
from wire.report import KeptReport
from wire.topics import RELEASES, TOPICS, release_key

from .evidence import WindowEvidence
from .transcript_check import Link, Place, Transcript, TranscriptVerdict, verify_transcripts


@dataclass(frozen=True, slots=True)
class OwnReport(KeptReport):
    """A report to look for; d counts the words of its task's vector."""

    d: int

    @property
    def place(self) -> Place:
        return self.series, self.cohort, self.window


class Verdict(StrEnum):
    """What a check came to; `RELEASED` alone is proven."""

    RELEASED = "released"
    REFUSED = "does not hold"
    OUTSIDE = "not in the release"
    SUPPRESSED = "suppressed"
    NOT_YET = "not yet"
    UNKNOWN = "cannot be told"


@dataclass(slots=True)
class ReportVerdict:
    """What `check_report` found, in sentences.

    release    hash of the unsigned release, 32 B, where there is one
    hosts      accepted hosts of the release, where the share tells
    outside    why the report is not in the release; None where it is, or nothing tells
    """

    held: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    release: bytes | None = None
    hosts: int | None = None
    outside: str | None = None
    suppressed: str | None = None
    in_batch: bool = False
    in_sum: bool = False

    @property
    def verdict(self) -> Verdict:
        """The whole of it in a word: a failure outweighs everything."""
        if self.failed:
            return Verdict.REFUSED
        if self.outside is not None:
            return Verdict.OUTSIDE
        if self.suppressed is not None:
            return Verdict.SUPPRESSED
        if self.release is None:
            return Verdict.NOT_YET
        return Verdict.RELEASED if self.in_batch and self.in_sum else Verdict.UNKNOWN


Chains = dict[tuple[str, int], TranscriptVerdict]
"""What was found of a chain (series, cohort); reports of one chain share it."""


def check_report(
    own: OwnReport,
    leader: Transcript,
    helper: Transcript,
    parties: PinnedParties,
    chains: Chains | None = None,
) -> ReportVerdict:
    """Look for a report in both transcripts, and check everything on the way to it.

    leader, helper   read with the evidence of the report's window
    chains           of the same transcripts: what is verified already, and where more is kept
    """
    found = ReportVerdict()
    for expected, transcript in (("leader", leader), ("helper", helper)):
        if not_of := transcript.not_of(expected):
            found.failed.append(not_of)
    if found.failed:
        return found
    links = {side.party: _link_of(own, side) for side in (leader, helper)}
    _check_chain(own, leader, helper, parties, {} if chains is None else chains, found)
    if links["leader"] is None and links["helper"] is None:
        found.suppressed = leader.suppressed.get(own.place)
        chain, later = own.place[:2], own.window
        if found.suppressed is not None:
            found.open.append(
                "that the window was suppressed, and why, is the Leader's word: nobody signs it"
            )
        elif any(link.place[:2] == chain and link.window > later for link in leader.links):
            found.suppressed = "no reason given; later windows of its chain are released"
        else:
            found.open.append("neither transcript has a release of this window")
        return found
    for party, link in links.items():
        if link is not None:
            found.release = link.release.release.hash()
            _check_evidence(own, party, link, parties, found)
    if None in links.values():
        lacking = "Helper" if links["helper"] is None else "Leader"
        found.open.append(f"the {lacking}'s transcript has no release of this window")
        found.in_sum = False
    return found


def _link_of(own: OwnReport, transcript: Transcript) -> Link | None:
    """The release of the report's window; of two task versions the one that its batch names."""
    links = transcript.links_of(own.place)
    for link in links:
        task = None if link.evidence is None else link.evidence.batch[16:48]
        if len(links) == 1 or task == own.task_id:
            return link
    return links[0] if links else None


def _check_chain(
    own: OwnReport,
    leader: Transcript,
    helper: Transcript,
    parties: PinnedParties,
    chains: Chains,
    found: ReportVerdict,
) -> None:
    chain = own.place[:2]
    if chain not in chains:
        ours, theirs = (
            replace(
                side,
                links=tuple(link for link in side.links if link.place[:2] == chain),
                unreleased=tuple(s for s in side.unreleased if (s.series, s.cohort) == chain),
            )
            for side in (leader, helper)
        )
        chains[chain] = verify_transcripts(ours, theirs, parties)
    verdict = chains[chain]
    found.failed += verdict.problems
    if verdict.problems or not verdict.releases:
        return
    found.held.append(
        f"the chain of {own.series}, cohort {own.cohort}: {verdict.releases} releases, each with "
        "the hash of the one before, the same at both parties, under the Leader's signature and"
        f" {'the' if not verdict.unsigned else 'for all but the newest the'} Helper's"
    )
    if verdict.unsigned:
        found.open.append(f"{verdict.unsigned} releases at the chain's end await the Helper")


def _check_evidence(
    own: OwnReport, party: str, link: Link, parties: PinnedParties, found: ReportVerdict
) -> None:
    name, evidence = party.capitalize(), link.evidence
    if evidence is None:
        listed = link.says(own.report_id)
        told = {True: "says that the report is in, but ", False: "says that it is not in, and "}
        also = "" if listed is None else told[listed]
        found.open.append(
            f"the {name}'s transcript {also}has neither batch nor share of the window to prove "
            "it: both parties keep them for a week, and export them with --window"
        )
        return
    try:
        batch = _checked_batch(own, name, link, evidence, parties, found)
        place = _own_place(own, name, batch, evidence, found)
        if place is None:
            return
        signed = _checked_share(own, name, link, evidence, batch, parties, found)
    except ReportRejected as refusal:
        found.failed.append(f"the {name}'s batch or share cannot be read: {refusal}")
        return
    if signed is None:
        return
    found.hosts = signed.share.n_accepted
    if not signed.share.accepted[place]:
        why = ", ".join(f"{reason} of {n}" for reason, n in sorted(evidence.cleared.items()))
        unnamed = "the Helper cleared its bit"
        found.outside = f"{unnamed}; reasons and hosts in this batch: {why}" if why else unnamed
        return
    found.in_sum = True
    found.held.append(
        f"the {name}'s share: the Helper signed it, the release names it, this host's bit is set "
        f"among {found.hosts} accepted hosts"
    )


def _checked_batch(
    own: OwnReport,
    name: str,
    link: Link,
    evidence: WindowEvidence,
    parties: PinnedParties,
    found: ReportVerdict,
) -> Batch:
    batch = Batch.decode(evidence.batch)
    if batch.hash() != link.release.release.batch_hash:
        found.failed.append(f"the {name}'s batch is not the one that the release names")
    signature = evidence.batch_signature
    if signature and not verify(parties.leader_pk, evidence.batch, signature):
        found.failed.append(f"the Leader's signature over the {name}'s batch does not hold")
    if (batch.task_id, batch.cohort, batch.window) != (own.task_id, own.cohort, own.window):
        found.failed.append(f"the {name}'s batch is of another task, cohort or window")
    return batch


def _own_place(
    own: OwnReport, name: str, batch: Batch, evidence: WindowEvidence, found: ReportVerdict
) -> int | None:
    """The host's place in the batch, once its entry is what the host sealed."""
    if found.failed:
        return None
    hosts: list[bytes] = batch.entries["host_id"].tolist()
    if own.host_id not in hosts:
        why = "its report came late, was refused, or was left out"
        found.outside = f"this host is not in the batch: {why}"
        among = f"this host is not among its {batch.n} hosts"
        found.held.append(f"the {name}'s batch: the release names it, and {among}")
        return None
    place = hosts.index(own.host_id)
    entry: Any = batch.entries[place]
    for what in ("epoch_id", "report_id", "tag_h"):
        sealed = getattr(own, what)
        if entry[what].tobytes() != sealed:
            found.failed.append(
                f"the {name}'s batch names this host with another {what}: expected "
                f"{sealed.hex()}, got {entry[what].tobytes().hex()}"
            )
    if not found.failed:
        found.in_batch = True
        found.held.append(
            f"the {name}'s batch: the release names it, {batch.n} hosts stand in it, this one "
            f"as number {place + 1} with the host, epoch, report id and tag of this report"
            + (", under the Leader's signature" if evidence.batch_signature else "")
        )
    return place


def _checked_share(
    own: OwnReport,
    name: str,
    link: Link,
    evidence: WindowEvidence,
    batch: Batch,
    parties: PinnedParties,
    found: ReportVerdict,
) -> SignedShare | None:
    if not evidence.share:
        found.open.append(f"the {name}'s transcript has no share of the window")
        return None
    signed = SignedShare.decode(evidence.share, batch.n, own.d)
    if signed.signature == NO_SIGNATURE or not verify(
        parties.helper_pk, evidence.share[:-64], signed.signature
    ):
        found.failed.append(f"the Helper's signature over the {name}'s share does not hold")
    if signed.share.batch_hash != batch.hash():
        found.failed.append(f"the {name}'s share answers another batch")
    if signed.share.hash() != link.release.release.share_hash:
        found.failed.append(f"the {name}'s share is not the one that the release names")
    return None if found.failed else signed


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
        read = empty = 0
        # A group that gives its member no partition in ten seconds has none.
        while read < MOST_RECORDS and empty < _EMPTY_POLLS and consumer.lag() != 0:
            records = consumer.poll(_POLL_RECORDS, _POLL_S)
            read, empty = read + len(records), 0 if records else empty + 1
            for record in records:
                with suppress(ReportRejected):
                    kind, core = unwrap(record.value, _TOPIC.max_bytes)
                    if record.key == key and kind is Kind.RELEASE:
                        found.append(SignedRelease.decode(core))
    finally:
        consumer.close()
    return found


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
