"""Findings as lines for a terminal, and as objects for JSON."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, Final

from diagnosis.detect.findings import (
    Diagnosis,
    Evidence,
    Finding,
    SpikeBegan,
    SpikeEnded,
    Warned,
)
from edge_agent.local.diagnosis_words import (
    ADVICE,
    diagnosis_said,
    ended_said,
    evidence_in_full,
    evidence_said,
    interferer,
    most_telling,
    spike_said,
    unknown_said,
    warning_said,
)
from edge_agent.local.local_rows import clean_name

from .clocks import BoottimeReader

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
        case Warned():
            return warning_said(finding)
        case Diagnosis() if _is_repeated(finding, before):
            return f"incident: heavy for twenty seconds; still {_cause(finding)}"
        case Diagnosis():
            return diagnosis_said(finding)
        case SpikeBegan():
            return f"{spike_said(finding)}, slow since {clock.short(finding.onset_ns)}"
        case SpikeEnded():
            slow = f"slow from {clock.short(finding.onset_ns)}"
            return f"{ended_said(finding)} ({slow}; the calm seconds that tell it included)"


def _cause(one: Diagnosis) -> str:
    return f"{one.cause.value} {100 * one.confidence:.0f} %"


def _is_repeated(one: Diagnosis, before: Diagnosis | None) -> bool:
    return one.incident and before is not None and before.cause is one.cause


def _below(finding: Finding, before: Diagnosis | None, *, verbose: bool) -> Iterator[str]:
    if isinstance(finding, Warned):
        yield from _evidence(finding.evidence, "", verbose=verbose)
    if not isinstance(finding, Diagnosis) or (_is_repeated(finding, before) and not verbose):
        return
    unknown = unknown_said(finding)
    if unknown:
        yield unknown
    yield from _evidence(finding.evidence, interferer(finding), verbose=verbose)
    yield f"next: {ADVICE[finding.cause]}"


def _evidence(found: tuple[Evidence, ...], known: str, *, verbose: bool) -> Iterator[str]:
    for one in found if verbose else most_telling(found, SHOWN):
        yield evidence_said(one, (known,))
        if verbose:
            yield f"  {evidence_in_full(one)}"


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
        pairs = ((one.name, getattr(value, one.name)) for one in dataclasses.fields(value))
        return _plain(dict(pairs), clock)
    if isinstance(value, Mapping):
        return {
            (f"{name.removesuffix('_ns')}_s" if name.endswith("_ns") else name): (
                clock.seconds(found) if name.endswith("_ns") else _plain(found, clock)
            )
            for name, found in value.items()
        }
    if isinstance(value, tuple | list):
        return [_plain(one, clock) for one in value]
    return value.value if isinstance(value, Enum) else value
