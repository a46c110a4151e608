"""Frames as rows of a recording, and back: one row per series over a chunk of frames.

A row is (kind, key, name, numbers, integers); a list of one value is a series of that value alone.
Numbers keep 9 significant bits (0.2 %), ends of steps 0.1 ms: a minute takes some 30 KB.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectors.records.activity import StepSource
from transport.process.printable import printable

from .frame import FINE_BINS, HostSample, Signals, Steps, Subject
from .signals import FINE, NAME

_DROPPED_BITS: Final = 15
"""Of the 23 stored bits of a float32's fraction."""
_END_NS: Final = 100_000
_LONGEST_US: Final = 86_400e6
_FARTHEST: Final = 10**12
"""Longest way between two steps, on the grid: sums of a part's cannot overflow."""

_LATEST_NS: Final = 1 << 62
_MOST_LOST: Final = 1 << 40
_MOST_ENTRIES: Final = 4_000_000
"""Values and steps' records of a part once it is spread out over its frames: one value in the file
may stand for each of them."""

Numbers = NDArray[np.float32]
Integers = NDArray[np.int64]
_NO_NUMBERS: Final = np.zeros(0, np.float32)
_NO_INTEGERS: Final = np.zeros(0, np.int64)


class SeriesRow(NamedTuple):
    kind: str
    key: str
    name: str
    numbers: Numbers = _NO_NUMBERS
    integers: Integers = _NO_INTEGERS


def rounded(values: Iterable[float] | NDArray[Any]) -> Numbers:
    """Round to 9 significant bits. NaN stays; raises ValueError for an infinite number."""
    found = np.asarray(values if isinstance(values, np.ndarray) else list(values), np.float32)
    if np.isinf(found).any():
        raise ValueError("expected finite signals or NaN, got an infinite one")
    bits = found.view(np.uint32)
    last = bits >> np.uint32(_DROPPED_BITS) & np.uint32(1)
    half = np.uint32((1 << _DROPPED_BITS - 1) - 1)
    even = (bits + half + last) & np.uint32(0xFFFFFFFF << _DROPPED_BITS & 0xFFFFFFFF)
    return np.where(np.isnan(found), found, even.view(np.float32))


def rows_of(frames: Sequence[HostSample]) -> Iterator[SeriesRow]:
    ends = np.array([frame.boottime_ns for frame in frames], np.int64)
    spans = np.array([frame.span_ns for frame in frames], np.int64)
    yield SeriesRow("frame", "", "boottime_ns", integers=ends)
    yield SeriesRow("frame", "", "span_ns", integers=spans)
    yield from _signal_rows("host", "", [frame.host for frame in frames])
    fine = np.concatenate([frame.fine for frame in frames], axis=1)
    for name, values in zip(FINE, fine, strict=True):
        if not np.isnan(values).all():
            yield SeriesRow("fine", "", name, _short(rounded(values)))
    for kind, found in (
        ("cgroup", [frame.cgroups for frame in frames]),
        ("gpu", [{str(gpu): s for gpu, s in frame.gpus.items()} for frame in frames]),
    ):
        for key in sorted({key for table in found for key in table}):
            at = [place for place, table in enumerate(found) if key in table]
            yield SeriesRow(kind, printable(key), "", integers=np.array(at, np.int64))
            yield from _signal_rows(kind, printable(key), [found[place][key] for place in at])
    for key in sorted({key for frame in frames for key in frame.subjects}):
        yield from _subject_rows(frames, key)


def frames_of(rows: Iterable[SeriesRow]) -> list[HostSample]:
    """Put a chunk's frames together again. Raises ValueError for rows that do not fit."""
    chunk = _Chunk(rows)
    ends = chunk.integers("frame", "", "boottime_ns")
    spans = chunk.integers("frame", "", "span_ns", len(ends))
    count = len(ends)
    if (spans <= 0).any() or (ends < 0).any() or (np.maximum(spans, ends) > _LATEST_NS).any():
        raise ValueError("expected frames of a positive time and length")
    host = chunk.signals("host", "", count)
    fine = np.full((len(FINE), count * FINE_BINS), np.nan, np.float32)
    for name in chunk.names("fine", ""):
        if name in FINE:
            fine[FINE.index(name)] = chunk.numbers("fine", "", name, count * FINE_BINS)
    groups = {kind: _keyed(chunk, kind, count) for kind in ("cgroup", "gpu")}
    if any(not key.isdecimal() or int(key) >= 1 << 16 for key in chunk.keys("gpu")):
        raise ValueError("expected the index of a GPU")
    subjects = _subjects(chunk, count, int(ends[0]) if count else 0)
    return [
        HostSample(
            int(ends[place]), int(spans[place]), host[place],
            fine[:, place * FINE_BINS : (place + 1) * FINE_BINS].copy(),
            subjects[place], groups["cgroup"][place],
            {int(key): signals for key, signals in groups["gpu"][place].items()},
        )
        for place in range(count)
    ]  # fmt: skip


def _short(values: NDArray[Any]) -> NDArray[Any]:
    return values[:1] if len(values) > 1 and (values == values[0]).all() else values


def _signal_rows(kind: str, key: str, found: Sequence[Signals]) -> Iterator[SeriesRow]:
    for name in dict.fromkeys(name for signals in found for name in signals):
        values = rounded([signals.get(name, np.nan) for signals in found])
        yield SeriesRow(kind, key, name, _short(values))


def _subject_rows(frames: Sequence[HostSample], key: str) -> Iterator[SeriesRow]:
    at = [place for place, frame in enumerate(frames) if key in frame.subjects]
    found = [frames[place].subjects[key] for place in at]
    name = printable(key)
    facts: dict[str, list[int]] = {}
    for place, subject in zip(at, found, strict=True):
        fact = json.dumps(
            [printable(subject.cgroup), printable(subject.program), list(subject.gpus)],
            separators=(",", ":"),
        )
        facts.setdefault(fact, []).append(place)
    for fact, places in facts.items():
        yield SeriesRow("subject", name, fact, integers=np.array(places, np.int64))
    yield from _signal_rows("signal", name, [subject.signals for subject in found])
    for kind in ("steps", "rhythm"):
        by_source: dict[str, list[tuple[int, Steps]]] = {}
        for place, subject in zip(at, found, strict=True):
            steps: Steps | None = getattr(subject, kind)
            if steps is not None:
                by_source.setdefault(str(steps.source), []).append((place, steps))
        for source, placed in by_source.items():
            yield from _step_rows(f"{kind}.{source}", name, placed, frames[0].boottime_ns)


def _step_rows(
    kind: str, key: str, placed: Sequence[tuple[int, Steps]], base_ns: int
) -> Iterator[SeriesRow]:
    steps = [part for _, part in placed]
    ends = np.concatenate([part.ended_ns for part in steps])
    lasted = np.concatenate([part.duration_ns for part in steps])
    running = [-1 if part.running_ns is None else part.running_ns // 1_000 for part in steps]
    for name, values in (
        ("at", [place for place, _ in placed]),
        ("count", [len(part.ended_ns) for part in steps]),
        ("lost", [part.lost for part in steps]),
        ("running_us", running),
    ):
        found = np.array(values, np.int64)
        yield SeriesRow(kind, key, name, integers=found if name == "at" else _short(found))
    grid = (ends + _END_NS // 2) // _END_NS
    lasted_us = rounded(lasted / 1e3)
    # Steps mostly follow each other at once: what is left beside their lengths is small.
    between = np.diff(grid, prepend=np.int64(base_ns // _END_NS)) - _on_grid(lasted_us)
    yield SeriesRow(kind, key, "between", integers=between)
    yield SeriesRow(kind, key, "duration_us", numbers=lasted_us)


def _on_grid(lasted_us: Numbers) -> Integers:
    return np.asarray(np.rint(lasted_us.astype(np.float64) * (1e3 / _END_NS)), np.int64)


class _Chunk:
    """Rows by kind, key and name; every list is asked for with the length that it must have."""

    def __init__(self, rows: Iterable[SeriesRow]) -> None:
        self._rows: dict[tuple[str, str], dict[str, SeriesRow]] = {}
        self._room = _MOST_ENTRIES
        for row in rows:
            names = self._rows.setdefault((row.kind, row.key), {})
            if row.name in names:
                raise ValueError(f"expected one series {row.kind} {row.name}, got two")
            names[row.name] = row

    def spend(self, entries: int) -> None:
        """Count what is about to be spread out. Raises ValueError where a part holds too much."""
        self._room -= entries
        if self._room < 0:
            raise ValueError(f"expected at most {_MOST_ENTRIES} values in a part, got more")

    def keys(self, kind: str) -> list[str]:
        return sorted(key for found, key in self._rows if found == kind)

    def names(self, kind: str, key: str) -> list[str]:
        return list(self._rows.get((kind, key), {}))

    def kinds(self, start: str) -> list[tuple[str, str]]:
        return sorted((kind, key) for kind, key in self._rows if kind.startswith(start))

    def integers(self, kind: str, key: str, name: str, count: int | None = None) -> Integers:
        return self._sized(self._row(kind, key, name).integers, count, f"{kind} {name}")

    def numbers(self, kind: str, key: str, name: str, count: int) -> Numbers:
        return self._sized(self._row(kind, key, name).numbers, count, f"{kind} {name}")

    def signals(self, kind: str, key: str, count: int) -> list[dict[str, float]]:
        """Give the signals of `count` seconds; NaN is absent."""
        found: list[dict[str, float]] = [{} for _ in range(count)]
        for name in self.names(kind, key):
            if not name:
                continue
            if not NAME.fullmatch(name):
                raise ValueError(f"expected the name of a signal, got {name[:80]!r}")
            self.spend(count)
            values = self.numbers(kind, key, name, count)
            for place in np.flatnonzero(~np.isnan(values)).tolist():
                found[place][name] = float(values[place])
        return found

    def places(self, kind: str, key: str, name: str, count: int) -> list[int]:
        at = self.integers(kind, key, name)
        if (
            len(at) > count
            or (len(at) and (at[0] < 0 or at[-1] >= count))
            or (np.diff(at) <= 0).any()
        ):
            raise ValueError(f"expected ascending frames of {count} in {kind}, got others")
        self.spend(len(at))
        places: list[int] = at.tolist()
        return places

    def _row(self, kind: str, key: str, name: str) -> SeriesRow:
        row = self._rows.get((kind, key), {}).get(name)
        if row is None:
            raise ValueError(f"expected a series {kind} {name or 'of frames'}, got none")
        return row

    @staticmethod
    def _sized(values: NDArray[Any], count: int | None, what: str) -> NDArray[Any]:
        if count is None or len(values) == count:
            return values
        if len(values) == 1:
            return np.repeat(values, count)
        raise ValueError(f"expected {count} values of {what}, got {len(values)}")


def _keyed(chunk: _Chunk, kind: str, count: int) -> list[dict[str, Signals]]:
    found: list[dict[str, Signals]] = [{} for _ in range(count)]
    for key in chunk.keys(kind):
        places = chunk.places(kind, key, "", count)
        for place, signals in zip(places, chunk.signals(kind, key, len(places)), strict=True):
            found[place][key] = signals
    return found


def _subjects(chunk: _Chunk, count: int, base_ns: int) -> list[dict[str, Subject]]:
    found: list[dict[str, Subject]] = [{} for _ in range(count)]
    marks: dict[str, dict[tuple[str, int], Steps]] = {}
    for start in ("steps.", "rhythm."):
        for kind, key in chunk.kinds(start):
            for place, made in _steps(chunk, kind, key, count, base_ns):
                marks.setdefault(key, {})[start, place] = made
    for key in chunk.keys("subject"):
        facts: dict[int, tuple[str, str, tuple[int, ...]]] = {}
        for name in chunk.names("subject", key):
            fact = _fact(name)
            facts.update(dict.fromkeys(chunk.places("subject", key, name, count), fact))
        own = marks.get(key, {})
        signals = chunk.signals("signal", key, len(facts))
        for place, values in zip(sorted(facts), signals, strict=True):
            cgroup, program, gpus = facts[place]
            steps, rhythm = own.get(("steps.", place)), own.get(("rhythm.", place))
            found[place][key] = Subject(cgroup, program, values, steps, rhythm, gpus)
    return found


def _steps(
    chunk: _Chunk, kind: str, key: str, count: int, base_ns: int
) -> Iterator[tuple[int, Steps]]:
    source = StepSource(kind.partition(".")[2])
    places = chunk.places(kind, key, "at", count)
    counts = chunk.integers(kind, key, "count", len(places))
    if (counts < 0).any():
        raise ValueError("expected counts of steps of at least 0")
    gone = chunk.integers(kind, key, "lost", len(places))
    ages = chunk.integers(kind, key, "running_us", len(places))
    if ((gone < 0) | (gone > _MOST_LOST)).any() or (ages > _LONGEST_US).any():
        raise ValueError("expected lost steps and ages of steps of up to a day, got others")
    lost, running = gone.tolist(), ages.tolist()
    total = sum(counts.tolist())
    between = chunk.integers(kind, key, "between")
    if len(between) != total:
        raise ValueError(f"expected the ends of {total} steps, got {len(between)}")
    lasted_us = chunk.numbers(kind, key, "duration_us", total)
    if not ((lasted_us >= 0) & (lasted_us < _LONGEST_US)).all():
        raise ValueError("expected durations of steps from 0 to a day, got others")
    if (np.abs(between) > _FARTHEST).any():
        raise ValueError("expected ends of steps near each other, got others")
    ends = (np.cumsum(between + _on_grid(lasted_us)) + base_ns // _END_NS) * _END_NS
    lasted = np.maximum(np.rint(lasted_us.astype(np.float64) * 1e3), 1).astype(np.int64)
    first = 0
    for place, here, missed, age in zip(places, counts.tolist(), lost, running, strict=True):
        part = slice(first, first + here)
        first += here
        age_ns = None if age < 0 else age * 1_000
        yield place, Steps(source, ends[part], lasted[part], missed, age_ns)


def _fact(text: str) -> tuple[str, str, tuple[int, ...]]:
    try:
        found = json.loads(text)
    except RecursionError:
        found = None
    match found:
        case [str(cgroup), str(program), list(gpus)] if (cgroup + program).isprintable() and all(
            isinstance(gpu, int) and 0 <= gpu < 1 << 16 for gpu in gpus
        ):
            return cgroup, program, tuple(gpus)
    raise ValueError("expected a subject's cgroup, program and GPUs")
