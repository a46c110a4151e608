"""The journal's lines: one finding as one JSON object, written and read with bounds.

A journal is read back by people, by plots and by replays, on other machines and by later versions;
so a line carries its format, and every number, text and list of it is bounded when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from types import MappingProxyType, UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from .findings import Diagnosis, Evidence, Finding, SpikeBegan, SpikeEnded, StepTimes
from .trail import Series, SignalSeries

FORMAT: Final = 1
MAX_LINE_BYTES: Final = 65_536
MAX_TEXT: Final = 4_096
LONGEST_NAME: Final = 512
"""Written of a name: a cgroup's may be 4 KiB, and each of its bytes six of JSON."""
MAX_ITEMS: Final = 64
MAX_INTEGER: Final = (1 << 63) - 1

_KINDS: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        "spike": SpikeBegan,
        "diagnosis": Diagnosis,
        "ended": SpikeEnded,
        "series": Series,
    }
)
_FORMER_KINDS: Final = frozenset({"warned"})
"""Written by older agents, read by none: early warnings."""
_FIELDS: Final[Mapping[type[Any], Mapping[str, Any]]] = MappingProxyType(
    {kind: get_type_hints(kind) for kind in (*_KINDS.values(), Evidence, StepTimes, SignalSeries)}
)
"""Types of every dataclass' fields, by name."""

_REQUIRED: Final[Mapping[type[Any], frozenset[str]]] = MappingProxyType(
    {kind: frozenset(f.name for f in fields(kind) if f.default is MISSING) for kind in _FIELDS}
)

_NAMES: Final = MappingProxyType({kind: name for name, kind in _KINDS.items()})


class JournalLineError(ValueError):
    """A line that no agent of this format wrote; the message says what was expected."""


class FormerLineError(JournalLineError):
    """A finding of a kind that only older agents gave."""


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One finding of a journal.

    offset_ns   Unix time less CLOCK_BOOTTIME when it was written: added to any time of the finding,
                it gives Unix nanoseconds
    """

    offset_ns: int
    finding: Finding | Series

    @property
    def at_ns(self) -> int:
        """When it was known, CLOCK_BOOTTIME; of a picture, the onset of its spike."""
        finding = self.finding
        if isinstance(finding, Series):
            return finding.onset_ns
        return finding.ended_ns if isinstance(finding, SpikeEnded) else finding.at_ns

    @property
    def unix_ns(self) -> int:
        """When it was known, Unix time."""
        return self.at_ns + self.offset_ns


def encode(finding: Finding | Series, offset_ns: int) -> bytes:
    """Give one line, without its newline. Raises JournalLineError for one that no reader takes."""
    record = {
        "format": FORMAT,
        "kind": _NAMES[type(finding)],
        "offset_ns": offset_ns,
        "finding": _plain(finding),
    }
    # Names that are no text (a cgroup's bytes) become escapes, which any reader takes.
    line = json.dumps(record, separators=(",", ":")).encode()
    decode(line)
    return line


def decode(line: bytes) -> JournalLine:
    """Read one line. Raises JournalLineError."""
    if len(line) > MAX_LINE_BYTES:
        raise JournalLineError(f"expected at most {MAX_LINE_BYTES} bytes, got {len(line)}")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise JournalLineError("expected one JSON object, got other bytes") from None
    if not isinstance(record, dict) or set(record) != {"format", "kind", "offset_ns", "finding"}:
        raise JournalLineError("expected the keys format, kind, offset_ns and finding")
    if record["format"] != FORMAT or isinstance(record["format"], bool):
        raise JournalLineError(f"expected format {FORMAT}, got {str(record['format'])[:20]}")
    named = record["kind"] if isinstance(record["kind"], str) else ""
    if named in _FORMER_KINDS:
        raise FormerLineError(f"expected a kind that agents still give, got {named}")
    kind = _KINDS.get(named)
    if kind is None:
        raise JournalLineError(f"expected a kind of {', '.join(_KINDS)}")
    offset_ns = _integer(record["offset_ns"], "offset_ns")
    found = _built(kind, record["finding"], record["kind"])
    if isinstance(found, Series):
        _check_seconds(found)
    return JournalLine(offset_ns, found)


@dataclass(slots=True)
class JournalReader:
    """Reads a journal line by line; what is damaged (a crash cut it off) is counted and left out.

    Findings of kinds that only older agents gave are passed over.

    damaged     lines that were left out
    """

    damaged: int = field(default=0)

    def read(self, lines: Iterable[bytes]) -> Iterator[JournalLine]:
        """Give the lines that are whole; empty ones are none."""
        for line in lines:
            text = line.strip()
            if not text:
                continue
            try:
                yield decode(text)
            except FormerLineError:
                continue
            except JournalLineError:
                self.damaged += 1


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, StrEnum):
        return value.value
    return value[:LONGEST_NAME] if isinstance(value, str) else value


def _built(kind: type[Any], raw: Any, where: str) -> Any:
    """Build a dataclass of findings from JSON.

    Fields that have a default may be absent: an older agent did not know them.
    """
    hints = _FIELDS[kind]
    if not isinstance(raw, dict) or not _REQUIRED[kind] <= set(raw) <= set(hints):
        raise JournalLineError(f"{where}: expected the fields {', '.join(hints)}")
    return kind(**{name: _value(hints[name], raw[name], f"{where}.{name}") for name in raw})


def _check_seconds(series: Series) -> None:
    for values in (series.p50_ms, series.longest_ms, *(s.values for s in series.signals)):
        if len(values) != len(series.seconds):
            raise JournalLineError(
                f"series: expected {len(series.seconds)} values, one a second, got {len(values)}"
            )


def _value(kind: Any, raw: Any, where: str) -> Any:
    if isinstance(kind, UnionType):
        first, *rest = (part for part in get_args(kind) if part is not type(None))
        if rest:
            raise TypeError(f"{where}: a finding's field is of one type, or none")
        return None if raw is None else _value(first, raw, where)
    if get_origin(kind) is tuple:
        return _tuple(get_args(kind), raw, where)
    if is_dataclass(kind):
        return _built(kind, raw, where)  # type: ignore[arg-type]
    if issubclass(kind, StrEnum):
        return _enumerated(kind, raw, where)
    return _PLAIN[kind](raw, where)


def _tuple(parts: tuple[Any, ...], raw: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(raw, list) or len(raw) > MAX_ITEMS:
        raise JournalLineError(f"{where}: expected a list of at most {MAX_ITEMS}")
    if parts[-1] is ...:
        return tuple(_value(parts[0], item, where) for item in raw)
    if len(raw) != len(parts):
        raise JournalLineError(f"{where}: expected {len(parts)} values, got {len(raw)}")
    return tuple(_value(part, item, where) for part, item in zip(parts, raw, strict=True))


def _enumerated(kind: type[StrEnum], raw: Any, where: str) -> StrEnum:
    try:
        return kind(raw)
    except ValueError:
        raise JournalLineError(f"{where}: expected one of {', '.join(kind)}") from None


def _integer(raw: Any, where: str) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or abs(raw) > MAX_INTEGER:
        raise JournalLineError(f"{where}: expected a whole number of 64 bits")
    return raw


def _number(raw: Any, where: str) -> float:
    # What is no number is not below it either; a whole number may be too long for a float.
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not abs(raw) <= MAX_INTEGER:
        raise JournalLineError(f"{where}: expected a finite number of at most {MAX_INTEGER}")
    return float(raw)


def _text(raw: Any, where: str) -> str:
    if not isinstance(raw, str) or len(raw) > MAX_TEXT:
        raise JournalLineError(f"{where}: expected a text of at most {MAX_TEXT} characters")
    return raw


def _truth(raw: Any, where: str) -> bool:
    if not isinstance(raw, bool):
        raise JournalLineError(f"{where}: expected true or false")
    return raw


_PLAIN: Final[Mapping[type[Any], Callable[[Any, str], Any]]] = MappingProxyType(
    {int: _integer, float: _number, str: _text, bool: _truth}
)
