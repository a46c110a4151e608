"""Whether the two parties' transcripts are one: chains, signatures, and what each says of a window.

Links are taken in order, one window of both parties at a time. An export may be a stranger's: it is
read piece by piece; each piece, its texts and its depth are bounded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby, islice
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final

import ijson

from aggregator.protocol.directory import PinnedParties
from privacy.signing import verify
from wire.batch import FIRST_PREV, SignedRelease
from wire.fields import MAX_HOSTS, NO_SIGNATURE, need_name, need_range, need_time
from wire.rejection import ReportRejected

from .evidence import UnreleasedShare, WindowEvidence, compare_unreleased

Place = tuple[str, int, int]
"""Series, cohort and window start."""
LEADER: Final = "leader"
HELPER: Final = "helper"


class TranscriptRefused(ValueError):
    """What was read is no transcript of a party; says what was expected, and what came."""


@dataclass(frozen=True, slots=True)
class Link:
    """One release as one party keeps it.

    report_ids   16 B each, of the accepted hosts; None once the batch's body is a week old. The
                 party itself has all: an export tells of those in `asked`
    evidence     batch and share; None where they were not asked for, or are a week old
    reports      hash of all the ids: the same at both parties, and tells none of them
    """

    series: str
    cohort: int
    window: int
    release: SignedRelease
    batch_hash: bytes
    share_hash: bytes
    report_ids: frozenset[bytes] | None
    evidence: WindowEvidence | None = None
    reports: bytes | None = None
    asked: frozenset[bytes] | None = None

    def says(self, report_id: bytes) -> bool | None:
        """Whether a report is among those accepted; None where it does not tell."""
        if self.report_ids is None or (self.asked is not None and report_id not in self.asked):
            return None
        return report_id in self.report_ids

    @property
    def place(self) -> Place:
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
        said = f"the file says it is of: {self.party[:40]!r}"
        return f"expected the transcript of the {party.capitalize()}, {said}"

    def is_silent_on(self, report_id: bytes) -> bool:
        """Whether this is an export that was not asked about a report: it may well be in."""
        return any(
            link.reports is not None and link.asked is not None and report_id not in link.asked
            for link in self.links
        )

    def contains(self, report_id: bytes) -> Link | None:
        """The release that a report went into, as far as bodies are still kept."""
        for link in self.links:
            if link.says(report_id):
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
            lacks = f"{series}/{cohort}: the Helper has a chain that the Leader lacks"
            verdict.problems.append(lacks)
    suppressed = compare_unreleased(leader.unreleased, helper.unreleased, parties.helper_pk)
    for at, problem in suppressed:
        verdict.problems.append(f"{at.series}/{at.cohort} window {at.window}: {problem}")
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
        if chain != (_chain(ours) or _chain(theirs)):
            chain = _chain(ours) or _chain(theirs)
            ends = {LEADER: FIRST_PREV, HELPER: FIRST_PREV}
        problems = (
            *(() if ours is None else _of_link(LEADER, ours, ends, parties)),
            *(() if theirs is None else _of_link(HELPER, theirs, ends, parties)),
            *_between(ours, theirs, at_end),
        )
        yield CheckedWindow(ours, theirs, problems)


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
            expected = f"the {party.capitalize()}'s links in order of series, cohort and window"
            raise TranscriptRefused(f"expected {expected}, got link {number} after a later one")
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
    elif None not in (theirs.reports, ours.reports) and theirs.reports != ours.reports:
        yield ": the two parties name different reports"


def find_report(transcripts: Iterable[Transcript], report_id: bytes) -> dict[str, Link | None]:
    """In which release of each party a report is."""
    return {transcript.party: transcript.contains(report_id) for transcript in transcripts}


FORMAT: Final = "pointillist-transcript-2"
FORMATS: Final = frozenset({FORMAT, "pointillist-transcript-1"})
"""The first listed the ids of all reports: which hosts took part, and so how many."""
MOST_EXPORT_BYTES: Final = 512 << 20
"""A week of a minute's ids of 1,000 hosts, as the first format had them, is 350 MiB."""
MOST_TEXT_BYTES: Final = 192 << 20
"""Of one text in an export: a batch of 2^20 hosts is 72 MiB, twice that in hex."""
MOST_PARTS: Final = MAX_HOSTS + 1_000
"""Of one element of a list: the ids of a window's reports, and what stands beside them."""
_DEPTH: Final = 4
"""Of an element: a link, its evidence, and the hosts by reason in it."""
_MOST_COHORT: Final = (1 << 32) - 1

Events = Iterator[tuple[str, Any]]
_END: Final = ("", None)
LINKS: Final = "links"
UNRELEASED: Final = "unreleased"
SUPPRESSED: Final = "suppressed"
MALFORMED: Final = (ValueError, KeyError, TypeError, AttributeError, OverflowError)
_NOT_AN_EXPORT: Final = (*MALFORMED, ijson.JSONError, ReportRejected)


def hash_of_ids(ids: Iterable[bytes] | None) -> bytes | None:
    return None if ids is None else hashlib.sha256(b"".join(sorted(ids))).digest()


def read_export(path: Path) -> Transcript:
    """Read what `transcript.export_transcript` wrote, whole; it may be a stranger's.

    Raises      TranscriptRefused, OSError
    """
    links: list[Link] = []
    unreleased: list[UnreleasedShare] = []
    suppressed: dict[Place, str] = {}
    party = ""
    for kind, part in export_parts(path):
        match kind:
            case "party":
                party = part
            case "links":
                links.append(part)
            case "unreleased":
                unreleased.append(part)
            case _:
                place, reason = part
                suppressed[place] = reason
    return Transcript(party, tuple(links), tuple(unreleased), suppressed)


def export_parts(
    path: Path, *, most_bytes: int = MOST_EXPORT_BYTES, most_text: int = MOST_TEXT_BYTES
) -> Iterator[tuple[str, Any]]:
    """Give what an export holds, in its order, one piece at a time.

    Returns     (party, text), (links, Link), (unreleased, UnreleasedShare),
                (suppressed, (place, reason))
    Raises      TranscriptRefused, also at its end; OSError
    """
    size = path.stat().st_size
    if size > most_bytes:
        raise TranscriptRefused(f"expected at most {most_bytes} bytes, got {size}")
    missing = {"format", "party"}
    try:
        with path.open("rb") as file:
            text = _BoundedText(file, most_text)
            for kind, raw in _elements(ijson.basic_parse(text, use_float=True)):
                missing.discard(kind)
                if kind == "format" and raw not in FORMATS:
                    raise ValueError(f"format {raw!r:.40}")
                if (read := _READ.get(kind)) is not None:
                    yield kind, read(raw)
        if missing:
            raise ValueError(f"no {' and no '.join(sorted(missing))}")
    except _NOT_AN_EXPORT as error:
        found = " ".join(str(error).split())[:200] or type(error).__name__
        raise TranscriptRefused(f"expected a transcript, got: {found}") from error


class _BoundedText:
    """A file of JSON, none of whose texts is longer than so many bytes: a parser keeps it whole."""

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file, self._most, self._since = file, most, 0

    def read(self, size: int = -1) -> bytes:
        part = self._file.read(size)
        last = part.rfind(b'"')
        self._since = self._since + len(part) if last < 0 else len(part) - last
        if self._since > self._most:
            raise ValueError(f"a text of more than {self._most} bytes")
        return part


def _elements(events: Events) -> Events:
    """Give the texts of an export and the elements of its lists, by the name they stand under."""
    if next(events, _END)[0] != "start_map":
        raise ValueError("no object")
    for event, name in events:
        if event == "end_map":
            continue
        event, value = next(events, _END)  # noqa: PLW2901  (a name's value follows it)
        if event != "start_array":
            yield name, _built(islice(events, MOST_PARTS), event, value, _DEPTH)
            continue
        for event, value in events:  # noqa: PLW2901
            if event == "end_array":
                break
            yield name, _built(islice(events, MOST_PARTS), event, value, _DEPTH)


def _built(events: Events, event: str, value: Any, depth: int) -> Any:
    if event not in {"start_array", "start_map"}:
        return value
    if not depth:
        raise ValueError(f"lists or objects more than {_DEPTH} deep")
    if event == "start_array":
        items: list[Any] = []
        for event, value in events:  # noqa: PLR1704  (the same pair, the next one)
            if event == "end_array":
                return items
            items.append(_built(events, event, value, depth - 1))
    else:
        fields: dict[str, Any] = {}
        for event, name in events:
            if event == "end_map":
                return fields
            event, value = next(events, _END)  # noqa: PLW2901
            fields[name] = _built(events, event, value, depth - 1)
    raise ValueError(f"an element of more than {MOST_PARTS} parts")


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError(f"{type(raw).__name__} where a text is expected")
    return raw


def place_of(series: Any, cohort: Any, window: Any) -> Place:
    """Give a place as a stranger has it; raises TypeError, ReportRejected."""
    if not (isinstance(cohort, int) and isinstance(window, int)):
        raise TypeError("a cohort or window that is no whole number")
    return (
        need_name(_text(series), "a series"),
        need_range(cohort, 0, _MOST_COHORT, "cohort"),
        need_time(window, "window"),
    )


def _link(raw: Any) -> Link:
    evidence = raw.get("evidence")
    told: dict[str, Any] = {}
    if "report_ids" in raw:
        ids = raw["report_ids"]
        told["report_ids"] = None if ids is None else frozenset(map(bytes.fromhex, ids))
        told["reports"] = hash_of_ids(told["report_ids"])
    else:
        asked = {bytes.fromhex(name): bool(is_in) for name, is_in in raw["asked"].items()}
        told["report_ids"] = frozenset(name for name, is_in in asked.items() if is_in)
        told["asked"] = frozenset(asked)
        told["reports"] = None if raw["reports"] is None else bytes.fromhex(raw["reports"])
    return Link(
        *place_of(raw["series"], raw["cohort"], raw["window"]),
        SignedRelease.decode(bytes.fromhex(raw["release"])),
        bytes.fromhex(raw["batch_hash"]),
        bytes.fromhex(raw["share_hash"]),
        evidence=None if evidence is None else WindowEvidence.of_export(evidence),
        **told,
    )


def _unreleased(raw: Any) -> UnreleasedShare:
    place_of(raw["series"], raw["cohort"], raw["window"])
    return UnreleasedShare.of_record(raw)


def _suppressed(raw: Any) -> tuple[Place, str]:
    series, cohort, window, reason = raw
    return place_of(series, cohort, window), _text(reason)


_READ: Final[dict[str, Callable[[Any], Any]]] = {
    "party": _text,
    LINKS: _link,
    UNRELEASED: _unreleased,
    SUPPRESSED: _suppressed,
}
