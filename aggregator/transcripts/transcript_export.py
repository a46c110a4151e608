"""Exported transcripts: a party's chains as JSON, for the other side; read from strangers.

An export is read piece by piece, so that its length does not decide what reading it takes; each
piece, its texts and its depth are bounded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import ijson

from wire.batch import SignedRelease
from wire.fields import MAX_HOSTS, MAX_TIME, need_name, need_range
from wire.rejection import ReportRejected

from .transcript_check import Link, Place, Transcript, TranscriptRefused
from .unreleased_shares import UnreleasedShare
from .window_evidence import WindowEvidence

FORMAT: Final = "pointillist-transcript-1"
MOST_EXPORT_BYTES: Final = 512 << 20
"""A week of a minute's ids of 1,000 hosts is 350 MiB."""
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
_NOT_AN_EXPORT: Final = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    ijson.JSONError,
    ReportRejected,
)


def export_transcript(transcript: Transcript, path: Path) -> None:
    """Write a transcript for the other party or a host to check."""
    body = {
        "format": FORMAT,
        "party": transcript.party,
        LINKS: [_exported(link) for link in transcript.links],
        UNRELEASED: [answered.record() for answered in transcript.unreleased],
        SUPPRESSED: [[*place, reason] for place, reason in transcript.suppressed.items()],
    }
    path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def read_export(path: Path) -> Transcript:
    """Read what `export_transcript` wrote, whole; it may be a stranger's.

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
                if kind == "format" and raw != FORMAT:
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
        """Give the next bytes; raises ValueError where a text does not end."""
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
    """Build one value from its first event and those that follow."""
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
    """Give a place as a stranger has it.

    Raises      TypeError, ReportRejected
    """
    if not (isinstance(cohort, int) and isinstance(window, int)):
        raise TypeError("a cohort or window that is no whole number")
    return (
        need_name(_text(series), "a series"),
        need_range(cohort, 0, _MOST_COHORT, "cohort"),
        need_range(window, 0, MAX_TIME, "window"),
    )


def _link(raw: Any) -> Link:
    ids, evidence = raw["report_ids"], raw.get("evidence")
    return Link(
        *place_of(raw["series"], raw["cohort"], raw["window"]),
        SignedRelease.decode(bytes.fromhex(raw["release"])),
        bytes.fromhex(raw["batch_hash"]),
        bytes.fromhex(raw["share_hash"]),
        None if ids is None else frozenset(map(bytes.fromhex, ids)),
        None if evidence is None else WindowEvidence.of_export(evidence),
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


def _exported(link: Link) -> dict[str, Any]:
    ids = link.report_ids
    return {
        "series": link.series,
        "cohort": link.cohort,
        "window": link.window,
        "release": link.release.encode().hex(),
        "batch_hash": link.batch_hash.hex(),
        "share_hash": link.share_hash.hex(),
        "report_ids": None if ids is None else sorted(report_id.hex() for report_id in ids),
    } | ({} if link.evidence is None else {"evidence": link.evidence.export()})
