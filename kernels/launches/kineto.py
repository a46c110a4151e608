"""Stream the GPU events of a PyTorch (Kineto) trace: memory is bounded whatever the size."""

from __future__ import annotations

import gzip
import heapq
import json
import re
import zlib
from codecs import BOM_UTF8, getincrementaldecoder
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, cast

from .launch import LONGEST_NS, MOST_DEPTH, JsonDepth, Skip

_CHUNK_BYTES = 1 << 16
_HEADER_EVENTS = 1_000
_WORD = 32
"""Characters of a stream or a category that are told apart."""
_MOST_CATEGORIES = 64
_MOST_STREAMS = 1 << 16
NO_DEVICE: Final = -1
_KINDS = frozenset({"kernel", "concurrent_kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset"})
_COPIES = frozenset({"gpu_memcpy", "memcpy"})
_MOST_DEVICES = 1 << 16

REORDER_EVENTS = 1 << 16
"""Events held back to sort by time: traces write streams one after the other. The farthest
displacement among ten real traces was 7,656 (a V100 training job); one held event is ~150 bytes."""


class TraceError(Exception):
    """A trace that cannot be read: names the file and the byte at which it stops making sense."""

    def __init__(self, path: Path, offset: int, problem: str) -> None:
        super().__init__(f"trace {path}: {problem} at byte {offset:,}")
        self.offset = offset


@dataclass(frozen=True, slots=True, order=True)
class GpuEvent:
    """One kernel, copy or fill of a trace.

    start_ns, duration_ns   the trace's own clock; duration 0 .. 1 h
    device                  the trace's device index; NO_DEVICE where it tells none
    copy_bytes              bytes of a copy, None for all else
    """

    start_ns: int
    duration_ns: int
    device: int
    stream: str
    name: str
    copy_bytes: int | None


@dataclass(frozen=True, slots=True)
class TraceHeader:
    """What the head of a trace says about itself; None and () where it says nothing.

    application    a class by name (top-level key `application`)
    pipeline_tag   the task of a model hub's model (`metadata.experiment.pipeline_tag`)
    """

    application: str | None
    pipeline_tag: str | None
    gpu_models: tuple[str, ...]


def read_header(path: Path) -> TraceHeader:
    """Look beside the first events for what ran and on which GPUs."""
    head: dict[str, Any] = {}
    with suppress(TraceError):  # `gpu_events` reports what is wrong, with its offset
        deque(islice(trace_items(path, Counter(), head), _HEADER_EVENTS), maxlen=0)
    metadata = _within(head, "metadata", "experiment")
    devices = head.get("deviceProperties")
    models = [one.get("name") for one in devices or () if isinstance(one, dict)]
    return TraceHeader(
        _text(head.get("application")),
        _text(metadata.get("pipeline_tag")),
        tuple(name for name in models if isinstance(name, str)),
    )


def _within(value: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def gpu_events(
    path: Path,
    reorder: int = REORDER_EVENTS,
    skipped: Counter[Skip] | None = None,
    others: Counter[str] | None = None,
) -> Iterator[GpuEvent]:
    """Yield the GPU events of a trace by start time, holding at most `reorder` of them back.

    Events that lie farther out of order come as they are. Malformed single events are left out.
    skipped     counts them, by reason, and what is broken; None: what is broken ends the trace
    others      counts entries of no GPU by their category
    Raises      TraceError when the file cannot be read; without `skipped`, is cut short or no JSON
    """
    held: list[GpuEvent] = []
    for item in trace_items(path, skipped):
        event = _gpu_event(item)
        if not isinstance(event, GpuEvent):
            if event is not None and skipped is not None:
                skipped[event] += 1
            elif others is not None and len(others) < _MOST_CATEGORIES:
                others[str(item.get("cat") if isinstance(item, dict) else item)[:_WORD]] += 1
            continue
        if len(held) < reorder:
            heapq.heappush(held, event)
        else:
            yield heapq.heappushpop(held, event)
    while held:
        yield heapq.heappop(held)


class StreamTime:
    """What slices of one stream hold twice: there one kernel begins when another has ended."""

    def __init__(self) -> None:
        self.whole_ns = self.twice_ns = 0
        self._ends: dict[tuple[int, str], int] = {}

    def add(self, event: GpuEvent) -> None:
        """Take the next event by start."""
        place, end_ns = (event.device, event.stream), event.start_ns + event.duration_ns
        before_ns = self._ends.get(place, event.start_ns)
        self.whole_ns += event.duration_ns
        self.twice_ns += max(0, min(before_ns, end_ns) - event.start_ns)
        if place in self._ends or len(self._ends) < _MOST_STREAMS:
            self._ends[place] = max(before_ns, end_ns)


def trace_items(
    path: Path, lost: Counter[Skip] | None = None, head: dict[str, Any] | None = None
) -> Iterator[Any]:
    """Yield the entries of traceEvents (or of a top-level list), whatever they are.

    PyTorch writes Windows' paths, `inf` and commas as no JSON has them, and a job that is killed
    cuts its file: entries are read one by one, and mended where that is certain.

    lost    counts entries that cannot be read; None: the first ends the trace
    head    gets what stands beside the events, as it is met
    Raises  TraceError when the file cannot be read, or has no entry that can be
    """
    text = _Text(path, lost)
    mark = text.next_mark()
    if not mark:
        raise TraceError(path, 0, "the file is empty")
    if mark not in "[{":
        raise TraceError(path, text.offset(text.at), "expected JSON, a list or an object")
    text.at += 1
    if mark == "[":
        yield from _entries(text)
    else:
        yield from _beside(text, {} if head is None else head)
    if text.problem is not None and not text.given:
        raise text.problem


def _beside(text: _Text, head: dict[str, Any]) -> Iterator[Any]:
    """Read the top level's keys; of broken values all is left out up to the events."""
    try:
        while (mark := text.next_mark()) not in {"}", ""}:
            key = text.value()
            if text.next_mark(":") == "[" and key == "traceEvents":
                text.at += 1
                yield from _entries(text)
            else:
                head[str(key)] = text.value()
    except _Broken as broken:
        text.lose(Skip.BROKEN, broken.at, str(broken))
        if text.find(_EVENTS):
            yield from _entries(text)
        return
    if not mark and not text.closed:
        text.lose(Skip.CUT, text.at, "the text ends")


def _entries(text: _Text) -> Iterator[Any]:
    """Read the entries of a list up to its end."""
    while (mark := text.next_mark()) not in {"]", ""}:
        try:
            item = text.value()
        except _Broken as broken:
            if text.strict:
                text.lose(Skip.BROKEN, broken.at, str(broken))
            entry, whole = text.up_to_next_entry()
            item = _mended(entry)
            if item is None:
                text.lose(Skip.BROKEN if whole else Skip.CUT, text.at, str(broken))
                continue
        text.given += 1
        yield item
    text.at += len(mark)
    if not mark and not text.closed:
        text.lose(Skip.CUT, text.at, "the text ends")


class _Broken(Exception):
    def __init__(self, at: int, problem: str) -> None:
        super().__init__(problem)
        self.at = at


class _Text:
    """A window of the trace's text: what is behind is dropped, what is ahead comes as asked for."""

    def __init__(self, path: Path, lost: Counter[Skip] | None) -> None:
        self._path, self._lost = path, lost
        self._parts = _chunks(path, lost)
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._dropped_bytes = 0
        self.strict = lost is None
        self.text, self.at = "", 0
        self.given = 0
        self.closed = False
        """Whether the end was seen behind a broken entry, or was told as cut off."""
        self.problem: TraceError | None = None

    def lose(self, why: Skip, at: int, problem: str) -> None:
        """Count what cannot be read. Raises TraceError where nothing may be lost."""
        if self.problem is None:
            self.problem = TraceError(self._path, self.offset(at), problem)
        if self._lost is None:
            raise self.problem
        self._lost[why] += 1
        self.closed = self.closed or why is Skip.CUT

    def offset(self, at: int) -> int:
        return self._dropped_bytes + len(self.text[:at].encode("utf-8", "surrogatepass"))

    def next_mark(self, passed: str = ",") -> str:
        """Pass blanks and one kind of mark; give the character that follows, "" at the end."""
        while True:
            found = _PASSED[passed].match(self.text, self.at)
            self.at = found.end() if found else self.at
            if self.at < len(self.text) or not self._more():
                return self.text[self.at : self.at + 1]

    def value(self) -> Any:
        """Read a value. Raises _Broken where none begins that a reader may hold."""
        while True:
            try:
                found, end = _DECODER.raw_decode(self.text, self.at)
            except (ValueError, RecursionError) as error:
                at, cut = getattr(error, "pos", self.at), "Unterminated" in str(error)
                ended = cut or len(self.text) - at < _LONGEST_TOKEN
                if not ended or len(self.text) - self.at > _MOST_ENTRY or not self._more():
                    if cut or at >= len(self.text):
                        raise _Broken(len(self.text), "the text ends") from None
                    raise _Broken(at, str(error).partition(":")[0]) from None
                continue
            if end < len(self.text) or not self._more():  # a number may go on
                self.at = end
                return found

    def up_to_next_entry(self) -> tuple[str, bool]:
        """Pass a broken entry; give its text, and whether another entry or the list's end follows.

        Behind the last entry all that is left is taken for it.
        """
        while (found := _NEXT.search(self.text, self.at + 1)) is None:
            if len(self.text) - self.at > _MOST_ENTRY:
                self.at = len(self.text) - _LONGEST_TOKEN
            if not self._more():
                entry, self.at = self.text[self.at :], len(self.text)
                self.closed = _CLOSED.search(entry) is not None
                return entry, self.closed
        entry, self.at = self.text[self.at : found.end()], found.end()
        return entry, True

    def find(self, pattern: re.Pattern[str]) -> bool:
        """Go behind the next place where a pattern fits."""
        while (found := pattern.search(self.text, self.at)) is None:
            self.at = max(self.at, len(self.text) - _LONGEST_TOKEN)
            if not self._more():
                return False
        self.at = found.end()
        return True

    def _more(self) -> bool:
        """Drop what is behind, and add as much as is held; False at the end."""
        added: list[str] = []
        wanted = max(len(self.text) - self.at, 1)
        while wanted > 0 and (part := next(self._parts, None)) is not None:
            added.append(self._decoder.decode(part))
            wanted -= max(len(added[-1]), 1)
        if added:
            self._dropped_bytes = self.offset(self.at)
            self.text, self.at = self.text[self.at :] + "".join(added), 0
        return bool(added)


_DECODER: Final = json.JSONDecoder(strict=False)
_MOST_ENTRY: Final = 1 << 22
_LONGEST_TOKEN: Final = 64
"""Of numbers and words, and of what `_EVENTS` and `_NEXT` find."""
_PASSED: Final = {mark: re.compile(rf"[\s{mark}]*") for mark in ",:"}
_EVENTS: Final = re.compile(r'"traceEvents"\s{0,8}:\s{0,8}\[')
_NEXT: Final = re.compile(
    r'\}\s{0,8},(?=\s{0,8}\{\s{0,8}"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp|sf)"\s{0,8}:)'
)
_CLOSED: Final = re.compile(r"\}\s*\]\s*(?:,\s*\"|\}|\Z)")
_MENDED: Final = re.compile(
    r'"(?:[^"\\]|\\.)*+"|(?<![\w.])-?(?:inf(?:inity)?|nan(?:\(ind\))?|\d\.#\w+)', re.IGNORECASE
)
_NO_ESCAPE: Final = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')


def _mended(entry: str) -> Any:
    """Read an entry whose text has single backslashes, or numbers that are none; None: it cannot.

    A path `torch\\nn` keeps a line's end for its `n`: who wrote it meant two characters.
    """

    def token(found: re.Match[str]) -> str:
        return found[0] if found[0].startswith('"') else "null"

    escaped = _NO_ESCAPE.sub(lambda one: one[0] if one[1] else r"\\", entry)
    for mend in (str, partial(_MENDED.sub, token)):
        with suppress(ValueError, RecursionError):
            return _DECODER.raw_decode(mend(escaped))[0]
    return None


def _chunks(path: Path, lost: Counter[Skip] | None) -> Iterator[bytes]:
    """Yield the (decompressed) file; a cut or damaged gzip names the decompressed byte.

    lost    counts that, and what came before it is all there is
    """
    position, depth = 0, JsonDepth()
    try:
        with open_trace(path) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                if depth.too_deep(chunk):
                    raise TraceError(path, position, f"over {MOST_DEPTH:,} levels deep")
                yield chunk
                position += len(chunk)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        cut = isinstance(error, EOFError)
        said = "the compressed file is cut short, its" if cut else f"damaged gzip ({error}),"
        if lost is None or not position:
            raise TraceError(path, position, f"{said} text ends") from None
    except OSError as error:
        raise TraceError(path, position, f"cannot read ({error.strerror or error})") from None


def open_trace(path: Path) -> IO[bytes]:
    """Open a trace, compressed or not, by its first bytes; a byte-order mark is left out."""
    with path.open("rb") as raw:
        compressed = raw.read(2) == b"\x1f\x8b"
    opened = gzip.open if compressed else Path.open
    stream = cast("IO[bytes]", opened(path, "rb"))
    if stream.read(len(BOM_UTF8)) != BOM_UTF8:
        stream.seek(0)
    return stream


def _gpu_event(item: Any) -> GpuEvent | Skip | None:
    """Return the GPU event of one entry, why it is malformed, or None when it is another kind."""
    if not isinstance(item, dict) or str(item.get("cat", "")).lower() not in _KINDS:
        return None
    arguments = item.get("args")
    arguments = arguments if isinstance(arguments, dict) else {}
    if item.get("ph", "X") != "X":
        return Skip.NO_SLICE
    device = arguments.get("device", item.get("pid"))
    stream = str(arguments.get("stream", item.get("tid")))[:_WORD]
    start_ns, duration_ns = _nanoseconds(item.get("ts")), _nanoseconds(item.get("dur"))
    if start_ns is None or duration_ns is None:
        return Skip.NO_TIME
    if not 0 <= duration_ns <= LONGEST_NS:
        return Skip.TOO_LONG
    if not isinstance(device, int) or not 0 <= device < _MOST_DEVICES:
        device = NO_DEVICE
    copied = arguments.get("bytes") if str(item["cat"]).lower() in _COPIES else None
    copy_bytes = copied if isinstance(copied, int) and 0 <= copied < 1 << 62 else None
    name = str(item.get("name", ""))
    return GpuEvent(start_ns, duration_ns, device, stream, name, copy_bytes)


def _nanoseconds(microseconds: Any) -> int | None:
    if isinstance(microseconds, bool) or not isinstance(microseconds, int | float):
        return None
    return round(microseconds * 1_000) if abs(microseconds) < 4e15 else None
