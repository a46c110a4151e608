"""Whether the two parties' transcripts are one: chains, signatures, and what each says of a window.

Links are taken in order, one window of both parties at a time: transcripts of any length are
checked in the memory that one window takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from types import MappingProxyType
from typing import Final

from aggregator.protocol.directory import PinnedParties
from privacy.signing import verify
from wire.batch import FIRST_PREV, SignedRelease
from wire.fields import NO_SIGNATURE

from .unreleased_shares import UnreleasedShare, compare_unreleased
from .window_evidence import WindowEvidence

Place = tuple[str, int, int]
"""Series, cohort and window start."""
LEADER: Final = "leader"
HELPER: Final = "helper"


class TranscriptRefused(ValueError):
    """What was read is no transcript of a party; says what was expected, and what came."""


@dataclass(frozen=True, slots=True)
class Link:
    """One release as one party keeps it.

    report_ids   16 B each, of the accepted hosts; None once the batch's body is a week old
    evidence     batch and share; None where they were not asked for, or are a week old
    """

    series: str
    cohort: int
    window: int
    release: SignedRelease
    batch_hash: bytes
    share_hash: bytes
    report_ids: frozenset[bytes] | None
    evidence: WindowEvidence | None = None

    @property
    def place(self) -> Place:
        """Where it stands."""
        return self.series, self.cohort, self.window


@dataclass(frozen=True, slots=True)
class Transcript:
    """All chains of one party.

    unreleased   answered batches without a release; the Leader's, for a week
    suppressed   windows that were settled without a release, and why: the Leader's word, unsigned
    """

    party: str
    links: tuple[Link, ...]
    unreleased: tuple[UnreleasedShare, ...] = ()
    suppressed: Mapping[Place, str] = field(default_factory=lambda: MappingProxyType({}))

    def not_of(self, party: str) -> str:
        """Say that it is another party's than it was taken for; empty where it is not."""
        if self.party == party:
            return ""
        return (
            f"expected the transcript of the {party.capitalize()}, the file says it is of: "
            f"{self.party[:40]!r}"
        )

    def contains(self, report_id: bytes) -> Link | None:
        """The release that a report went into, as far as bodies are still kept."""
        for link in self.links:
            if link.report_ids is not None and report_id in link.report_ids:
                return link
        return None

    def links_of(self, place: Place) -> list[Link]:
        """The releases of one window; one, but where a task changed its version in it."""
        return [link for link in self.links if link.place == place]


@dataclass(slots=True)
class TranscriptVerdict:
    """What `verify_transcripts` found; sound when `problems` is empty."""

    releases: int = 0
    chains: int = 0
    unsigned: int = 0
    unreleased: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether both chains agree."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class CheckedWindow:
    """One window of a chain, once both parties' links of it were looked at.

    ours, theirs   the Leader's link and the Helper's; None where a party has none
    problems       what does not hold, without where it is
    """

    ours: Link | None
    theirs: Link | None
    problems: tuple[str, ...]

    @property
    def link(self) -> Link:
        """Either party's link of it; the Leader's where both have one."""
        found = self.ours or self.theirs
        if found is None:
            raise ValueError("a window of a chain: expected a link of a party, got none")
        return found

    @property
    def where(self) -> str:
        """Where it is, for people."""
        return f"{self.link.series}/{self.link.cohort} window {self.link.window}"

    @property
    def unsigned(self) -> bool:
        """Whether the Leader's link waits for the Helper's signature."""
        return self.ours is not None and self.ours.release.sig_helper == NO_SIGNATURE


def verify_transcripts(
    leader: Transcript, helper: Transcript, parties: PinnedParties
) -> TranscriptVerdict:
    """Check both chains and that they are one.

    A release that the Helper has not signed yet is counted, and is no problem at a chain's end.
    """
    verdict = TranscriptVerdict(unreleased=len(leader.unreleased))
    ours, theirs = (sorted(side.links, key=lambda link: link.place) for side in (leader, helper))
    windows = checked_windows(ours, theirs, parties)
    for (series, cohort), chain in groupby(windows, key=lambda window: window.link.place[:2]):
        releases = 0
        for window in chain:
            releases += window.ours is not None
            verdict.unsigned += window.unsigned
            verdict.problems += [f"{window.where}{problem}" for problem in window.problems]
        verdict.releases += releases
        verdict.chains += releases > 0
        if not releases:
            verdict.problems.append(
                f"{series}/{cohort}: the Helper has a chain that the Leader lacks"
            )
    for suppressed, problem in compare_unreleased(
        leader.unreleased, helper.unreleased, parties.helper_pk
    ):
        verdict.problems.append(
            f"{suppressed.series}/{suppressed.cohort} window {suppressed.window}: {problem}"
        )
    return verdict


def checked_windows(
    leader: Iterable[Link], helper: Iterable[Link], parties: PinnedParties
) -> Iterator[CheckedWindow]:
    """Check window by window what both parties have of it.

    leader, helper   links in order of their places; read no further than the window at hand
    Raises           TranscriptRefused where they are in another order
    """
    chain: tuple[str, int] | None = None
    ends: dict[str, bytes] = {}
    for ours, theirs, at_end in _side_by_side(leader, helper):
        window = CheckedWindow(ours, theirs, ())
        if chain != window.link.place[:2]:
            chain, ends = window.link.place[:2], {LEADER: FIRST_PREV, HELPER: FIRST_PREV}
        problems = [
            *(() if ours is None else _of_link(LEADER, ours, ends, parties)),
            *(() if theirs is None else _of_link(HELPER, theirs, ends, parties)),
            *_between(ours, theirs, at_end),
        ]
        yield CheckedWindow(ours, theirs, tuple(problems)) if problems else window


def _side_by_side(
    leader: Iterable[Link], helper: Iterable[Link]
) -> Iterator[tuple[Link | None, Link | None, bool]]:
    """Put the links of one place side by side; the last says that one chain is over by then."""
    left, right = _in_order(LEADER, leader), _in_order(HELPER, helper)
    ours, theirs = next(left, None), next(right, None)
    while ours is not None or theirs is not None:
        if theirs is None or (ours is not None and ours.place < theirs.place):
            yield ours, None, _chain(theirs) != _chain(ours)
            ours = next(left, None)
        elif ours is None or theirs.place < ours.place:
            yield None, theirs, _chain(ours) != _chain(theirs)
            theirs = next(right, None)
        else:
            yield ours, theirs, False
            ours, theirs = next(left, None), next(right, None)


def _chain(link: Link | None) -> tuple[str, int] | None:
    return link.place[:2] if link else None


def _in_order(party: str, links: Iterable[Link]) -> Iterator[Link]:
    before: Place | None = None
    for number, link in enumerate(links, start=1):
        if before is not None and link.place < before:
            raise TranscriptRefused(
                f"expected the {party.capitalize()}'s links in order of series, cohort and window, "
                f"got link {number} after a later one"
            )
        before = link.place
        yield link


def _of_link(
    party: str, link: Link, ends: dict[str, bytes], parties: PinnedParties
) -> Iterator[str]:
    """Say what does not hold of one party's link; it is the end of its chain then."""
    release, signed = link.release.release, link.release
    if release.prev != ends[party]:
        yield f" ({party}): the chain is broken"
    if (release.batch_hash, release.share_hash) != (link.batch_hash, link.share_hash):
        yield f" ({party}): the release names another batch or share"
    if not _holds(parties.leader_pk, release.unsigned(), signed.sig_leader):
        yield f" ({party}): the Leader's signature does not hold"
    waits = signed.sig_helper == NO_SIGNATURE and party == LEADER
    if not waits and not _holds(parties.helper_pk, release.unsigned(), signed.sig_helper):
        yield f" ({party}): the Helper's signature does not hold"
    ends[party] = release.hash()


@lru_cache(maxsize=8)
def _holds(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Check a signature; what both parties have alike is checked once."""
    return verify(public_key, message, signature)


_OLDER: Final = ", nor a later one; if its transcript is the older one, export it again"
"""Of a fleet that runs, one transcript is always exported before the other."""


def _between(ours: Link | None, theirs: Link | None, at_end: bool) -> Iterator[str]:
    """Say where two parties' links of one window differ."""
    older = _OLDER if at_end else ""
    if ours is None:
        yield f": the Leader has no such release{older}"
    elif theirs is None:
        if ours.release.sig_helper != NO_SIGNATURE:
            yield f": the Helper has no such release{older}"
    elif theirs.release.release != ours.release.release:
        yield ": the two parties signed different releases"
    elif None not in (theirs.report_ids, ours.report_ids) and theirs.report_ids != ours.report_ids:
        yield ": the two parties name different reports"


def find_report(transcripts: Iterable[Transcript], report_id: bytes) -> dict[str, Link | None]:
    """In which release of each party a report is."""
    return {transcript.party: transcript.contains(report_id) for transcript in transcripts}
