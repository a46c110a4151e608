"""The journal: one finding as one line of JSON, bounded when it is read; pictures of spikes."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

import numpy as np

from diagnosis.frames.frame import HostSample, Signals, Steps

from .baseline import related
from .findings import Diagnosis, Evidence, Finding, SpikeBegan, SpikeEnded, StepTimes

SECONDS: Final = 60
MOST_SIGNALS: Final = 6
AFTER_NS: Final = 40_000_000_000
"""A spike that lasts gets its picture so long after its onset: a third of it lies before."""
MOST_SPIKES: Final = 256

Spike = tuple[str, int]
"""Subject and onset."""


@dataclass(frozen=True, slots=True)
class SignalSeries:
    """One signal of a scope (`Evidence`), second by second; None where it was not measured."""

    scope: str
    signal: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """A subject's last minute beside a few signals; every tuple has one entry a second.

    seconds      end of each second, relative to the onset
    p50_ms       of the steps that ended in it; None where none did
    longest_ms   likewise, or the age of a step that had not ended
    named_s      when the cause that stands was first named; None before it was
    ended_s      when it was over; None where it stood when this was cut
    """

    subject: str
    onset_ns: int
    seconds: tuple[float, ...]
    p50_ms: tuple[float | None, ...]
    longest_ms: tuple[float | None, ...]
    signals: tuple[SignalSeries, ...]
    named_s: float | None = None
    ended_s: float | None = None


class SignalHistory:
    """Keeps a minute of frames; cuts one picture of each spike, at its end or once it lasted."""

    def __init__(self) -> None:
        self._frames: deque[HostSample] = deque(maxlen=SECONDS)
        self._due: OrderedDict[Spike, tuple[Diagnosis, int]] = OrderedDict()
        self._cut: OrderedDict[Spike, None] = OrderedDict()

    def take(self, frame: HostSample, findings: Iterable[Finding]) -> list[Series]:
        self._frames.append(frame)
        ended: dict[Spike, int] = {}
        for finding in findings:
            if isinstance(finding, Diagnosis):
                spike = (finding.subject, finding.onset_ns)
                if spike not in self._cut and len(self._due) < MOST_SPIKES:
                    before, named_ns = self._due.get(spike, (None, 0))
                    same = before is not None and before.cause is finding.cause
                    self._due[spike] = finding, named_ns if same else finding.at_ns
            elif isinstance(finding, SpikeEnded):
                ended[finding.subject, finding.onset_ns] = finding.ended_ns
        latest_ns = frame.boottime_ns - AFTER_NS
        due = [spike for spike in self._due if spike in ended or spike[1] <= latest_ns]
        pictures = [self._picture(spike, ended.get(spike)) for spike in due]
        for spike in ended:
            self._cut.pop(spike, None)
        return pictures

    def rest(self) -> list[Series]:
        """Give the pictures of spikes that stand: there are no more frames."""
        return [self._picture(spike) for spike in list(self._due)]

    def _picture(self, spike: Spike, ended_ns: int | None = None) -> Series:
        standing, named_ns = self._due.pop(spike)
        self._cut[spike] = None
        while len(self._cut) > MOST_SPIKES:
            self._cut.popitem(last=False)
        return self._series(standing, named_ns, ended_ns)

    def _series(self, standing: Diagnosis, named_ns: int, ended_ns: int | None) -> Series:
        """Cut the picture of a diagnosis whose cause was first named at `named_ns`."""
        key, onset_ns = standing.subject, standing.onset_ns
        frames = [frame for frame in self._frames if key in frame.subjects]
        found = [frame.subjects[key] for frame in frames]
        steps = [
            _times_ms(subject.steps if subject.steps is not None else subject.rhythm)
            for subject in found
        ]
        signals = list(
            dict.fromkeys((evidence.scope, evidence.signal) for evidence in standing.evidence)
        )
        return Series(
            key,
            onset_ns,
            tuple(round((frame.boottime_ns - onset_ns) / 1e9, 3) for frame in frames),
            tuple(p50 for p50, _ in steps),
            tuple(longest for _, longest in steps),
            tuple(
                SignalSeries(*signal, tuple(_signal_value(*signal, frame, key) for frame in frames))
                for signal in signals[:MOST_SIGNALS]
            ),
            round((named_ns - onset_ns) / 1e9, 3),
            None if ended_ns is None else round((ended_ns - onset_ns) / 1e9, 3),
        )


def _times_ms(steps: Steps | None) -> tuple[float | None, float | None]:
    """Give the median and the longest step of a second; the age of one that runs on counts."""
    if steps is None:
        return None, None
    running_ms = round((steps.running_ns or 0) / 1e6, 3)
    if not len(steps.duration_ns):
        return None, running_ms or None
    ms = steps.duration_ns / 1e6
    return round(float(np.median(ms)), 3), round(max(float(ms.max()), running_ms), 3)


def _signal_value(scope: str, signal: str, frame: HostSample, key: str) -> float | None:
    subject = frame.subjects[key]
    places: Mapping[str, Iterable[Signals]] = {
        "own": [subject.signals],
        "host": [frame.host],
        "gpu": [frame.gpus[gpu] for gpu in subject.gpus if gpu in frame.gpus],
        "other": [
            signals for name, signals in frame.cgroups.items() if not related(name, subject.cgroup)
        ],
    }
    found = [place[signal] for place in places.get(scope, ()) if signal in place]
    if not found:
        return None
    return float(f"{sum(found) if scope == 'other' else found[0]:.6g}")


FORMAT: Final = 1
MAX_LINE_BYTES: Final = 65_536
MAX_TEXT: Final = 4_096
LONGEST_NAME: Final = 512
"""Written of a name: a cgroup's may be 4 KiB, and each of its bytes six of JSON."""
MAX_ITEMS: Final = 64
MAX_INTEGER: Final = (1 << 63) - 1

_KINDS: Final[Mapping[str, type[Any]]] = {
    "spike": SpikeBegan,
    "diagnosis": Diagnosis,
    "ended": SpikeEnded,
    "series": Series,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_FORMER_KINDS: Final = frozenset({"warned"})
"""Written by older agents, read by none: early warnings."""
_FIELDS: Final[Mapping[type[Any], Mapping[str, Any]]] = {
    kind: get_type_hints(kind) for kind in (*_NAMES, Evidence, StepTimes, SignalSeries)
}
"""Types of every dataclass' fields, by name."""
_REQUIRED: Final[Mapping[type[Any], frozenset[str]]] = {
    kind: frozenset(f.name for f in fields(kind) if f.default is MISSING) for kind in _FIELDS
}


class JournalLineError(ValueError):
    """A line that no agent of this format wrote; the message says what was expected."""


class FormerLineError(JournalLineError):
    """A finding of a kind that only older agents gave."""


@dataclass(frozen=True, slots=True)
class JournalLine:
    """One finding of a journal.

    offset_ns   Unix time less CLOCK_BOOTTIME when it was written, added to times of the finding
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
    offset_ns = _scalar(int, record["offset_ns"], "offset_ns")
    found = _built(kind, record["finding"], record["kind"])
    if isinstance(found, Series):
        for values in (found.p50_ms, found.longest_ms, *(s.values for s in found.signals)):
            if len(values) != (wanted := len(found.seconds)):
                raise JournalLineError(
                    f"series: expected {wanted} values, one a second, got {len(values)}"
                )
    return JournalLine(offset_ns, found)


@dataclass(slots=True)
class JournalReader:
    """Reads journals; damaged lines are counted and left out, former kinds passed over."""

    damaged: int = field(default=0)

    def read(self, lines: Iterable[bytes]) -> Iterator[JournalLine]:
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
    """Build a dataclass of findings; fields with a default may be absent, from an older agent."""
    hints = _FIELDS[kind]
    if not isinstance(raw, dict) or not _REQUIRED[kind] <= set(raw) <= set(hints):
        raise JournalLineError(f"{where}: expected the fields {', '.join(hints)}")
    return kind(**{name: _value(hints[name], raw[name], f"{where}.{name}") for name in raw})


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
        try:
            return kind(raw)
        except ValueError:
            raise JournalLineError(f"{where}: expected one of {', '.join(kind)}") from None
    return _scalar(kind, raw, where)


def _tuple(parts: tuple[Any, ...], raw: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(raw, list) or len(raw) > MAX_ITEMS:
        raise JournalLineError(f"{where}: expected a list of at most {MAX_ITEMS}")
    if parts[-1] is ...:
        return tuple(_value(parts[0], item, where) for item in raw)
    if len(raw) != len(parts):
        raise JournalLineError(f"{where}: expected {len(parts)} values, got {len(raw)}")
    return tuple(_value(part, item, where) for part, item in zip(parts, raw, strict=True))


# What is no number is not below a limit either; a whole number may be too long for a float.
_SCALARS: Final[Mapping[type[Any], tuple[Any, Callable[[Any], bool], str]]] = {
    int: (int, lambda raw: abs(raw) <= MAX_INTEGER, "a whole number of 64 bits"),
    float: (
        int | float,
        lambda raw: abs(raw) <= MAX_INTEGER,
        f"a finite number of at most {MAX_INTEGER}",
    ),
    str: (str, lambda raw: len(raw) <= MAX_TEXT, f"a text of at most {MAX_TEXT} characters"),
    bool: (bool, lambda _: True, "true or false"),
}


def _scalar(kind: type[Any], raw: Any, where: str) -> Any:
    types, fits, expected = _SCALARS[kind]
    known = isinstance(raw, types) and isinstance(raw, bool) is (kind is bool)
    if not known or not fits(raw):
        raise JournalLineError(f"{where}: expected {expected}")
    return kind(raw)
