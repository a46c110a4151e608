"""Findings as lines for a terminal and objects for JSON, and when each was found."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from diagnosis.detect.findings import Diagnosis, Evidence, Finding, SpikeBegan, SpikeEnded
from edge_agent.local import words
from edge_agent.local.local_rows import clean_name

_NS: Final = 1e9


@dataclass(frozen=True, slots=True)
class BoottimeReader:
    """Reads CLOCK_BOOTTIME for a person, for JSON and for the name of a file.

    zero_ns    CLOCK_BOOTTIME of its zero
    is_unix    its zero is 1970 UTC; else the beginning of a recording
    name       of the recording; "" where findings come from a journal or a live host
    recorded   when it was recorded, as it says itself; "" where it does not
    """

    zero_ns: int
    is_unix: bool
    name: str = ""
    recorded: str = ""

    def seconds(self, boottime_ns: int) -> float:
        """Seconds since its zero, to the millisecond."""
        return round((boottime_ns - self.zero_ns) / _NS, 3)

    def text(self, boottime_ns: int) -> str:
        if self.is_unix:
            return f"{self._date(boottime_ns):%Y-%m-%d %H:%M:%SZ}"
        return f"{self.seconds(boottime_ns):.1f} s"

    def short(self, boottime_ns: int) -> str:
        return f"{self._date(boottime_ns):%H:%M:%SZ}" if self.is_unix else self.text(boottime_ns)

    def column(self, boottime_ns: int) -> str:
        return f"{self.text(boottime_ns):>8}"

    def stamp(self, boottime_ns: int) -> str:
        """Say it in the name of a file, so that names sort by time."""
        if self.is_unix:
            return f"{self._date(boottime_ns):%Y%m%dT%H%M%SZ}"
        return f"{self.seconds(boottime_ns):06.1f}s"

    def _date(self, boottime_ns: int) -> datetime:
        return datetime.fromtimestamp((boottime_ns - self.zero_ns) / _NS, UTC)


def unix_clock(offset_ns: int) -> BoottimeReader:
    """Read times as dates; offset_ns: Unix time less CLOCK_BOOTTIME."""
    return BoottimeReader(-offset_ns, is_unix=True)


def recording_clock(start_ns: int, name: str = "", recorded: str = "") -> BoottimeReader:
    """Read times as seconds since a recording began."""
    return BoottimeReader(start_ns, is_unix=False, name=name, recorded=recorded)


SHOWN: Final = 4
"""Signals below a diagnosis; --verbose shows all of them."""
_NARROWEST: Final = 40
_INDENT: Final = " " * 12
_KEPT: Final = re.compile(r"(?<=\d) (?=(?:ms/s|s/s|[GMk]?B/s|ms|s|µs|[GMk]?B|%|MHz|W|°C)(?!\w))")
_JOINT: Final = "\0"
"""Stands for a space at which no line is broken: between a value and its unit."""


def at_ns(finding: Finding) -> int:
    """When it was known, CLOCK_BOOTTIME."""
    return finding.ended_ns if isinstance(finding, SpikeEnded) else finding.at_ns


def as_lines(
    finding: Finding, clock: BoottimeReader, before: Diagnosis | None, *, width: int, verbose: bool
) -> list[str]:
    """Lay a finding out.

    before   the diagnosis of the same spike that was told last: what it said is not said again
    width    columns of the terminal
    """
    time = clock.column(at_ns(finding))
    head = f"{time}  {clean_name(finding.subject)}  {clean_name(_head(finding, clock, before))}"
    lines = _wrapped(head, "", _INDENT, width)
    for line in _below(finding, before, verbose=verbose):
        lines += _wrapped(clean_name(line), _INDENT, f"{_INDENT}  ", width)
    return lines


def as_object(finding: Finding, clock: BoottimeReader) -> dict[str, Any]:
    """Give a finding for JSON: times as seconds of the clock, which is named."""
    body: dict[str, Any] = {
        "time": clock.seconds(at_ns(finding)),
        "clock": "unix" if clock.is_unix else "recording",
        "kind": type(finding).__name__,
    }
    if clock.name:
        body["recording"] = clock.name
    return {**body, **_plain(finding, clock)}


def _head(finding: Finding, clock: BoottimeReader, before: Diagnosis | None) -> str:
    match finding:
        case Diagnosis() if _is_repeated(finding, before):
            cause = f"{finding.cause.value} {100 * finding.confidence:.0f} %"
            return f"incident: heavy for twenty seconds; still {cause}"
        case Diagnosis():
            return words.diagnosis_said(finding)
        case SpikeBegan():
            return f"{words.spike_said(finding)}, slow since {clock.short(finding.onset_ns)}"
        case SpikeEnded():
            slow = f"slow from {clock.short(finding.onset_ns)}"
            return f"{words.ended_said(finding)} ({slow}; the calm seconds that tell it included)"


def _is_repeated(diagnosis: Diagnosis, before: Diagnosis | None) -> bool:
    return diagnosis.incident and before is not None and before.cause is diagnosis.cause


def _below(finding: Finding, before: Diagnosis | None, *, verbose: bool) -> Iterator[str]:
    if not isinstance(finding, Diagnosis) or (_is_repeated(finding, before) and not verbose):
        return
    unknown = words.unknown_said(finding)
    if unknown:
        yield unknown
    yield from _evidence(finding.evidence, words.interferer(finding), verbose=verbose)
    yield f"next: {words.ADVICE[finding.cause]}"


def _evidence(found: tuple[Evidence, ...], known: str, *, verbose: bool) -> Iterator[str]:
    for evidence in found if verbose else words.most_telling(found, SHOWN):
        yield words.evidence_said(evidence, (known,))
        if verbose:
            yield f"  {words.evidence_in_full(evidence)}"


def _wrapped(text: str, first: str, later: str, width: int) -> list[str]:
    width = max(width, len(later) + _NARROWEST)
    lines = textwrap.wrap(
        _KEPT.sub(_JOINT, text), width,
        initial_indent=first, subsequent_indent=later, break_on_hyphens=False,
    )  # fmt: skip
    return [line.replace(_JOINT, " ") for line in lines]


def _plain(value: Any, clock: BoottimeReader) -> Any:
    """Give JSON's types; what ends in `_ns` is a time, and becomes seconds of the clock."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return _plain(dict(pairs), clock)
    if isinstance(value, Mapping):
        return {
            (f"{name.removesuffix('_ns')}_s" if name.endswith("_ns") else name): (
                clock.seconds(found) if name.endswith("_ns") else _plain(found, clock)
            )
            for name, found in value.items()
        }
    if isinstance(value, tuple | list):
        return [_plain(element, clock) for element in value]
    return value.value if isinstance(value, Enum) else value
