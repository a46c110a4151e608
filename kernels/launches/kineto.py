"""Stream the GPU events of a PyTorch (Kineto) trace: memory is bounded whatever the size."""

from __future__ import annotations

import gzip
import heapq
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

import ijson

from transport.process.printable import first_line

from .launch import LONGEST_NS, MOST_DEPTH, JsonDepth, Skip

_CHUNK_BYTES = 1 << 16
_HEADER_BYTES = 1 << 18
_KINDS = frozenset({"kernel", "concurrent_kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset"})
_COPIES = frozenset({"gpu_memcpy", "memcpy"})
_MOST_DEVICES = 1 << 16

REORDER_EVENTS = 1 << 16
"""Events held back to sort by time: traces write streams one after the other. The farthest
displacement among ten real traces was 7,656 (a V100 training job); one held event is ~150 bytes."""


NO_JSON: Final = (ijson.JSONError, UnicodeDecodeError)
"""What ijson raises; of a string that is no UTF-8, Python's own error."""


class TraceError(Exception):
    """A trace that cannot be read: names the file and the byte at which it stops making sense."""

    def __init__(self, path: Path, offset: int, problem: str) -> None:
        super().__init__(f"trace {path}: {problem} at byte {offset:,}")
        self.offset = offset


@dataclass(frozen=True, slots=True, order=True)
class GpuEvent:
    """One kernel, copy or fill of a trace.

    start_ns, duration_ns   the trace's own clock; duration 0 .. 1 h
    device                  the trace's device index
    copy_bytes              bytes of a copy, None for all else
    """

    start_ns: int
    duration_ns: int
    device: int
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
    """Look at the first 256 KiB for what ran and on which GPUs."""
    found: Any = ijson.sendable_list()
    parser = ijson.parse_coro(found, use_float=True)
    read = 0
    try:
        for chunk in _chunks(path):
            parser.send(chunk)
            read += len(chunk)
            if read >= _HEADER_BYTES:
                break
    except (*NO_JSON, StopIteration):
        pass  # `gpu_events` reports what is wrong, with its offset
    texts = [(prefix, value) for prefix, kind, value in found if kind == "string"]
    first = dict(reversed(texts))
    models = tuple(v for p, v in texts if p == "deviceProperties.item.name")
    tag = first.get("metadata.experiment.pipeline_tag")
    return TraceHeader(first.get("application"), tag, models)


def gpu_events(
    path: Path, reorder: int = REORDER_EVENTS, skipped: Counter[Skip] | None = None
) -> Iterator[GpuEvent]:
    """Yield the GPU events of a trace by start time, holding at most `reorder` of them back.

    Events that lie farther out of order come as they are. Malformed single events are left out.
    skipped     counts them, by reason
    Raises      TraceError when the file cannot be read, is cut short or is no JSON
    """
    held: list[GpuEvent] = []
    for item in trace_items(path):
        event = _gpu_event(item)
        if not isinstance(event, GpuEvent):
            if event is not None and skipped is not None:
                skipped[event] += 1
            continue
        if len(held) < reorder:
            heapq.heappush(held, event)
        else:
            yield heapq.heappushpop(held, event)
    while held:
        yield heapq.heappop(held)


def trace_items(path: Path) -> Iterator[Any]:
    """Yield the entries of traceEvents (or of a top-level list), whatever they are.

    Raises  TraceError when the file cannot be read, is cut short or is no JSON
    """
    items: Any = ijson.sendable_list()
    parser = None
    fed = 0
    try:
        for chunk in _chunks(path):
            if parser is None:
                prefix = "item" if chunk.lstrip()[:1] == b"[" else "traceEvents.item"
                parser = ijson.items_coro(items, prefix, use_float=True)
            parser.send(chunk)
            fed += len(chunk)
            yield from items
            items.clear()
        if parser is None:
            raise TraceError(path, 0, "the file is empty")
        parser.close()
    except NO_JSON as error:
        raise TraceError(path, _offset_of_error(path, fed), first_line(error)) from None
    yield from items


def _offset_of_error(path: Path, fed: int) -> int:
    """Find the byte that breaks the JSON: read again up to the bad chunk, then byte by byte."""
    events: Any = ijson.sendable_list()
    parser = ijson.basic_parse_coro(events, use_float=True)
    position = 0
    try:
        for chunk in _chunks(path):
            if position < fed:
                parser.send(chunk)
                position += len(chunk)
                events.clear()
                continue
            for byte in chunk:
                parser.send(bytes((byte,)))
                position += 1
    except (*NO_JSON, StopIteration):
        pass
    return position


def _chunks(path: Path) -> Iterator[bytes]:
    """Yield the (decompressed) file; a cut or damaged gzip names the decompressed byte."""
    position, depth = 0, JsonDepth()
    try:
        with open_trace(path) as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                if depth.too_deep(chunk):
                    raise TraceError(path, position, f"over {MOST_DEPTH:,} levels deep")
                yield chunk
                position += len(chunk)
    except EOFError:
        problem = "the compressed file is cut short, its text ends"
        raise TraceError(path, position, problem) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(path, position, f"damaged gzip ({error}), text ends") from None
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
    device = arguments.get("device", item.get("pid"))
    start_ns, duration_ns = _nanoseconds(item.get("ts")), _nanoseconds(item.get("dur"))
    if start_ns is None or duration_ns is None:
        return Skip.NO_TIME
    if not 0 <= duration_ns <= LONGEST_NS:
        return Skip.TOO_LONG
    if not isinstance(device, int) or not 0 <= device < _MOST_DEVICES:
        return Skip.NO_DEVICE
    copied = arguments.get("bytes") if str(item["cat"]).lower() in _COPIES else None
    copy_bytes = copied if isinstance(copied, int) and 0 <= copied < 1 << 62 else None
    return GpuEvent(start_ns, duration_ns, device, str(item.get("name", "")), copy_bytes)


def _nanoseconds(microseconds: Any) -> int | None:
    if isinstance(microseconds, bool) or not isinstance(microseconds, int | float):
        return None
    return round(microseconds * 1_000) if abs(microseconds) < 4e15 else None
