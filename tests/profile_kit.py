"""Profiles read back without the code that wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

_STRING = {"Profile.6"}
_PACKED = {"Sample.1", "Sample.2", "Profile.13"}
_MESSAGES = {
    "Profile.1": "ValueType", "Profile.2": "Sample", "Profile.3": "Mapping",
    "Profile.4": "Location", "Profile.5": "Function", "Profile.11": "ValueType",
    "Sample.3": "Label", "Location.4": "Line",
}  # fmt: skip
"""What the fields of pprof's public profile.proto hold; every other field is a number."""

Message = dict[int, list[Any]]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        value, at = _varint(data, at)
        if tag & 7 == 2:
            yield tag >> 3, data[at : at + value]
            at += value
        else:
            assert tag & 7 == 0, f"wire type {tag & 7} is not in the format"
            yield tag >> 3, value
    assert at == len(data), "left-over bytes"


def parse(data: bytes, kind: str = "Profile") -> Message:
    """Parse a message of the public format by its field numbers alone."""
    found: Message = {}
    for number, value in _fields(data):
        name, into = f"{kind}.{number}", found.setdefault(number, [])
        if isinstance(value, int):
            into.append(value)
        elif name in _MESSAGES:
            into.append(parse(value, _MESSAGES[name]))
        elif name in _PACKED:
            at = 0
            while at < len(value):
                one, at = _varint(value, at)
                into.append(one)
        else:
            assert name in _STRING, f"{name} is no text"
            into.append(value.decode())
    return found


def one(message: Message, number: int) -> Any:
    """Give a field that stands once, 0 where it is left out."""
    (value,) = message.get(number, [0])
    return value


@dataclass
class ReadProfile:
    """A pprof profile as an independent reader has it; making one checks the format's rules."""

    message: Message
    samples: list[tuple[list[str], list[int], int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        message = self.message
        self.strings: list[str] = message[6]
        assert self.strings[0] == ""
        assert len(set(self.strings)) == len(self.strings)
        self.types = [(self._text(t, 1), self._text(t, 2)) for t in message[1]]
        self.mappings = {one(m, 1): m for m in message.get(3, [])}
        functions = {one(f, 1): self._text(f, 2) for f in message.get(5, [])}
        locations = {one(place, 1): place for place in message.get(4, [])}
        for table in (self.mappings, functions, locations):
            assert 0 not in table
        assert len(locations) == len(message.get(4, []))
        self.frames: dict[int, str] = {}
        for number, place in locations.items():
            mapping, address = one(place, 2), one(place, 3)
            if mapping:
                inside = self.mappings[mapping]
                assert one(inside, 2) <= address < one(inside, 3)
            lines = [functions[one(line, 1)] for line in place.get(4, [])]
            assert lines or address, "a location has a name or an address"
            self.frames[number] = lines[0] if lines else f"{address:#x}"
        for sample in message.get(2, []):
            assert len(sample[2]) == len(self.types)
            (label,) = sample[3]
            assert self._text(label, 1) in {"thread", "gpu"}
            frames = [self.frames[number] for number in sample[1]]
            self.samples.append((frames, sample[2], one(label, 3)))

    def total(self, name: str) -> int:
        place = [kind for kind, _ in self.types].index(name)
        return sum(values[place] for _, values, _ in self.samples)

    def _text(self, message: Message, number: int) -> str:
        return str(self.strings[one(message, number)])


def check_trace(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Hold a document against the trace event format; give its complete events ("X").

    Source  Trace Event Format, sections JSON Object Format, Complete, Instant, Metadata and Counter
            Events
    """
    events = document["traceEvents"]
    assert document["displayTimeUnit"] in {"ms", "ns"}
    spans: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in events:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        if event["ph"] == "C":
            assert event["ts"] >= 0
            assert event["args"]
            assert all(value >= 0 for value in event["args"].values())
            continue
        if event["ph"] == "M":
            assert event["name"] in {"process_name", "thread_name"}
            assert isinstance(event["args"]["name"], str)
            continue
        assert event["ts"] >= 0
        assert isinstance(event["cat"], str)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            track = spans.setdefault((event["pid"], event["tid"]), [])
            track.append((event["ts"], event["ts"] + event["dur"]))
        else:
            assert (event["ph"], event["s"]) == ("i", "t")
    for track in spans.values():
        track.sort()
        for (_, end), (begin, _) in pairwise(track):
            assert begin >= end - 0.002, "calls of one thread follow one another"
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    instants = {(e["pid"], e["tid"]) for e in events if e["ph"] == "i"}
    assert instants <= named, "every stream has a name"
    return [event for event in events if event["ph"] == "X"]
