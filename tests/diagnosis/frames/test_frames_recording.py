"""Recordings of frames: what is written comes back; what is damaged or hostile is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.records.activity import StepSource
from diagnosis.frames import recording
from diagnosis.frames.frame import FINE_BINS, HostSample, Signals, Steps, Subject
from diagnosis.frames.recording import (
    CHUNK_FRAMES,
    SCHEMA,
    RecordingError,
    RecordingWriter,
    iterate,
    read_meta,
    read_recording,
    write_recording,
)
from diagnosis.frames.signals import FINE
from tests.frames_kit import T0, S, frames

_HALF_BIT = 2.0**-9


def _same(found: Signals, written: Signals) -> None:
    assert found.keys() == written.keys()
    for name, value in written.items():
        assert found[name] == pytest.approx(value, rel=_HALF_BIT, abs=1e-30)


def _same_steps(found: Steps | None, written: Steps | None) -> None:
    assert (found is None) == (written is None)
    if found is None or written is None:
        return
    assert (found.source, found.lost) == (written.source, written.lost)
    assert len(found.ended_ns) == len(written.ended_ns)
    assert (np.abs(found.ended_ns - written.ended_ns) <= 50_000).all()
    assert (np.diff(found.ended_ns) >= 0).all()
    off = np.abs(found.duration_ns - written.duration_ns)
    assert (off <= written.duration_ns * _HALF_BIT + 1).all()
    assert (found.running_ns is None) == (written.running_ns is None)
    if found.running_ns is not None and written.running_ns is not None:
        assert 0 <= written.running_ns - found.running_ns < 1_000


def _same_frame(found: HostSample, written: HostSample) -> None:
    assert (found.boottime_ns, found.span_ns) == (written.boottime_ns, written.span_ns)
    _same(found.host, written.host)
    np.testing.assert_allclose(found.fine, written.fine, rtol=_HALF_BIT, atol=1e-30)
    for one, other in ((found.cgroups, written.cgroups), (found.gpus, written.gpus)):
        assert one.keys() == other.keys()
        for key in one:
            _same(one[key], other[key])  # type: ignore[index]
    assert found.subjects.keys() == written.subjects.keys()
    for key, subject in found.subjects.items():
        meant = written.subjects[key]
        assert (subject.cgroup, subject.program, subject.gpus) == (
            meant.cgroup, meant.program, meant.gpus,
        )  # fmt: skip
        _same(subject.signals, meant.signals)
        _same_steps(subject.steps, meant.steps)
        _same_steps(subject.rhythm, meant.rhythm)


@pytest.mark.release
@settings(max_examples=40)
@given(written=frames(), meta=st.dictionaries(st.text(max_size=5), st.integers(), max_size=2))
def test_recording_gives_back_what_was_written(
    written: list[HostSample], meta: dict[str, int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "round.parquet"
    write_recording(path, written, meta)
    found = read_recording(path)
    assert found.meta == meta
    assert len(found.frames) == len(written)
    for one, other in zip(found.frames, written, strict=True):
        _same_frame(one, other)


@settings(max_examples=15)
@given(written=frames())
def test_recording_of_a_recording_is_the_same(
    written: list[HostSample], tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = tmp_path_factory.getbasetemp() / "first.parquet"
    second = tmp_path_factory.getbasetemp() / "second.parquet"
    write_recording(first, written, {})
    once = read_recording(first).frames
    write_recording(second, once, {})
    for one, other in zip(read_recording(second).frames, once, strict=True):
        assert (one.host, one.cgroups, one.gpus) == (other.host, other.cgroups, other.gpus)
        np.testing.assert_array_equal(one.fine, other.fine)
        assert one.subjects.keys() == other.subjects.keys()
        for key, subject in one.subjects.items():
            meant = other.subjects[key]
            assert subject.signals == meant.signals
            for kind in ("steps", "rhythm"):
                made, kept = getattr(subject, kind), getattr(meant, kind)
                if made is not None:
                    assert made.ended_ns.tolist() == kept.ended_ns.tolist()
                    assert made.duration_ns.tolist() == kept.duration_ns.tolist()
                    assert made.running_ns == kept.running_ns


def _minute(subjects: int = 2, cgroups: int = 8) -> list[HostSample]:
    """A minute as fault runs look: two loops of 100 steps a second, eight cgroups, 24 fine rows."""
    rng = np.random.default_rng(7)
    made = []
    for second in range(1, 61):
        end_ns = T0 + second * S
        ends = np.sort(rng.integers(end_ns - S, end_ns, 100))
        lasted = rng.normal(9.7e6, 5e5, 100).astype(np.int64)
        own = {f"host{n}_per_s": float(rng.lognormal(3, 1)) for n in range(40)}
        own |= {f"quiet{n}_per_s": 0.0 for n in range(30)}
        fine = np.zeros((len(FINE), FINE_BINS), np.float32)
        fine[:10] = rng.lognormal(3, 1, (10, FINE_BINS))
        busy = {f"own{n}_per_s": float(rng.lognormal(3, 1)) for n in range(6)}
        busy |= {f"still{n}_per_s": 0.0 for n in range(8)}
        watched = {
            f"/job{n}": Subject(
                f"/job{n}", "python3", busy, Steps(StepSource.UPROBE, ends, lasted, 0, 1_000),
                Steps(StepSource.RHYTHM, ends, lasted),
            )
            for n in range(subjects)
        }  # fmt: skip
        others = {f"/other{n}": busy for n in range(cgroups)}
        made.append(HostSample(end_ns, S, own, fine, watched, others))
    return made


def test_recording_of_a_minute_is_small(tmp_path: Path) -> None:
    write_recording(tmp_path / "one.parquet", _minute(subjects=1), {})
    assert (tmp_path / "one.parquet").stat().st_size <= 40_000


def test_writer_writes_in_parts_that_are_read_in_turn(tmp_path: Path) -> None:
    path = tmp_path / "long.parquet"
    fine = np.full((len(FINE), FINE_BINS), np.nan, np.float32)
    with RecordingWriter(path, {"seed": 4}) as writer:
        for second in range(CHUNK_FRAMES + 3):
            writer.append(HostSample(T0 + second * S, S, {"cpu_ms_per_s": float(second)}, fine, {}))
            assert not path.exists()
        writer.close({"impact": True})
    assert read_meta(path) == {"seed": 4, "impact": True}
    found = [frame.boottime_ns for frame in iterate(path)]
    assert found == [T0 + second * S for second in range(CHUNK_FRAMES + 3)]
    assert pq.ParquetFile(path).num_row_groups == 2


def test_writer_leaves_no_file_after_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "run.parquet"
    fine = np.full((len(FINE), FINE_BINS), np.inf, np.float32)
    with pytest.raises(ValueError, match="finite"):
        write_recording(path, [HostSample(T0, S, {}, fine, {})], {})
    assert list(tmp_path.iterdir()) == []


_Rows = list[tuple[str, str, str, list[float], list[int]]]
_GOOD: _Rows = [
    ("frame", "", "boottime_ns", [], [T0, T0 + S]),
    ("frame", "", "span_ns", [], [S]),
    ("host", "", "cpu_ms_per_s", [1.0, 2.0], []),
]
_SUBJECT: _Rows = [
    *_GOOD,
    ("subject", "/job", '["/job","x",[]]', [], [0, 1]),
    ("steps.uprobe", "/job", "at", [], [0]),
    ("steps.uprobe", "/job", "count", [], [2]),
    ("steps.uprobe", "/job", "lost", [], [0]),
    ("steps.uprobe", "/job", "running_us", [], [-1]),
    ("steps.uprobe", "/job", "between", [], [5, 5]),
    ("steps.uprobe", "/job", "duration_us", [1.0, 2.0], []),
]


def _write(path: Path, rows: _Rows, facts: object = None, schema: pa.Schema = SCHEMA) -> Path:
    columns = list(zip(*rows, strict=True))
    arrays = [
        pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)
    ]
    text = json.dumps({"version": 1, "meta": {}} if facts is None else facts)
    whole = schema.with_metadata({"pointillist.frames": text})
    pq.write_table(pa.Table.from_arrays(arrays, schema=whole), path)
    return path


def _instead(rows: _Rows, at: int, **changed: object) -> _Rows:
    names = ("kind", "key", "name", "numbers", "integers")
    row: Any = tuple(changed.get(name, value) for name, value in zip(names, rows[at], strict=True))
    return [*rows[:at], row, *rows[at + 1 :]]


@pytest.mark.parametrize("rows", [_GOOD, _SUBJECT])
def test_recording_of_another_writer_is_read(tmp_path: Path, rows: _Rows) -> None:
    found = read_recording(_write(tmp_path / "x.parquet", rows)).frames
    assert [frame.host for frame in found] == [{"cpu_ms_per_s": 1.0}, {"cpu_ms_per_s": 2.0}]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (_instead(_GOOD, 1, integers=[0, S]), "positive"),
        (_instead(_GOOD, 1, integers=[S, S, S]), "expected 2 values of frame span_ns, got 3"),
        (_instead(_GOOD, 2, numbers=[float("inf"), 1.0]), "finite"),
        (_instead(_GOOD, 2, numbers=[1.0, 2.0, 3.0]), "expected 2 values"),
        (_instead(_GOOD, 2, numbers=[]), "expected 2 values"),
        (_instead(_GOOD, 2, name="CPU; drop"), "name"),
        (_instead(_GOOD, 2, kind="gpu", key="x", numbers=[]), "expected"),
        (_instead(_GOOD, 2, kind="x" * 5_000), "characters"),
        (_instead(_GOOD, 2, key="\x1b[2J"), "printable"),
        ([*_GOOD, _GOOD[2]], "got two"),
        (_GOOD[1:], "boottime_ns"),
        (_instead(_GOOD, 0, integers=list(range(5_000))), "at most 4096 frames"),
        (_instead(_SUBJECT, 3, name="[1]"), "cgroup"),
        (_instead(_SUBJECT, 3, name="{"), "part 0"),
        (_instead(_SUBJECT, 3, integers=[0, 9]), "frames of 2"),
        (_instead(_SUBJECT, 3, integers=[1, 0]), "ascending"),
        (_instead(_SUBJECT, 5, integers=[-2]), "at least 0"),
        (_instead(_SUBJECT, 5, integers=[1 << 62]), "steps"),
        (_instead(_SUBJECT, 8, integers=[1]), "ends of 2 steps"),
        (_instead(_SUBJECT, 8, integers=[5, -(1 << 62)]), "ends of steps"),
        (_instead(_SUBJECT, 9, numbers=[-1.0, 1.0]), "durations"),
        (_instead(_SUBJECT, 9, numbers=[float("nan"), 1.0]), "durations"),
        (_instead(_SUBJECT, 4, kind="steps.guess"), "guess"),
        (_instead(_SUBJECT, 3, name="[" * 4_000), "cgroup|part 0"),  # as deep as Python reads
        (_instead(_SUBJECT, 6, integers=[-1]), "ages of steps"),
        (_instead(_SUBJECT, 7, integers=[1 << 62]), "ages of steps"),
        (_instead(_SUBJECT, 5, integers=[(1 << 63) - 1]), "ends of 9223372036854775807 steps"),
        (_instead(_GOOD, 0, integers=[1, (1 << 63) - 1]), "positive time"),
    ],
)
def test_recording_that_does_not_fit_is_refused(tmp_path: Path, rows: _Rows, words: str) -> None:
    path = _write(tmp_path / "bad.parquet", rows)
    with pytest.raises(RecordingError, match=words):
        read_recording(path)


@pytest.mark.release
def test_recording_of_few_bytes_that_stand_for_millions_is_refused(tmp_path: Path) -> None:
    """A series of one value stands for every frame: 4,096 frames of 2,000 signals are 64 MB."""
    times = list(range(1, 4_097))
    rows: _Rows = [("frame", "", "boottime_ns", [], times), ("frame", "", "span_ns", [], [1])]
    rows += [("host", "", f"a{number}", [1.0], []) for number in range(2_000)]
    path = _write(tmp_path / "bomb.parquet", rows)
    assert path.stat().st_size < 2 << 20
    with pytest.raises(RecordingError, match="at most 4000000 values in a part"):
        next(iterate(path))


def test_recording_has_a_largest_part_and_number_of_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path / "x.parquet", _GOOD)
    monkeypatch.setattr(recording, "_MOST_WHOLE", 1)
    with pytest.raises(RecordingError, match="at most 1 frames"):
        read_recording(path)
    assert len(list(iterate(path))) == 2
    monkeypatch.setattr(recording, "_MOST_PART_BYTES", 100)
    with pytest.raises(RecordingError, match="parts of at most 100 bytes"):
        list(iterate(path))


def test_recording_with_facts_nested_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.parquet"
    whole = SCHEMA.with_metadata({"pointillist.frames": "[" * 100_000})
    pq.write_table(SCHEMA.empty_table().replace_schema_metadata(whole.metadata), path)
    with pytest.raises(RecordingError, match="facts in JSON"):
        read_recording(path)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"version": 2, "meta": {}}, "expected version 1 of recordings, got 2"),
        ({"version": 1}, "`meta`"),
        ([], "`meta`"),
    ],
)
def test_recording_with_other_facts_is_refused(tmp_path: Path, facts: object, words: str) -> None:
    path = _write(tmp_path / "bad.parquet", _GOOD, facts)
    with pytest.raises(RecordingError, match=words):
        read_meta(path)


def _other_table(path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), path)


def _other_type(path: Path) -> None:
    schema = SCHEMA.set(4, pa.field("integers", pa.list_(pa.string())))
    rows: Any = [("frame", "", "x", [1.0], ["a"])]
    _write(path, rows, schema=schema)


def _no_facts(path: Path) -> None:
    pq.write_table(
        pa.table({name: pa.array([], SCHEMA.field(name).type) for name in SCHEMA.names}), path
    )


def _cut_short(path: Path) -> None:
    _write(path, _GOOD)
    path.write_bytes(path.read_bytes()[:-40])


_FILES: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "text": (lambda path: path.write_text("hello"), "expected a Parquet file"),
    "empty": (lambda path: path.write_bytes(b""), "expected a Parquet file"),
    "cut short": (_cut_short, "expected a Parquet file"),
    "another table": (_other_table, "expected the columns"),
    "another type": (_other_type, "expected integers to be"),
    "no facts": (_no_facts, "facts of a recording"),
}


@pytest.mark.parametrize("kind", _FILES)
def test_file_that_is_no_recording_is_refused(tmp_path: Path, kind: str) -> None:
    make, words = _FILES[kind]
    make(tmp_path / "bad.parquet")
    with pytest.raises(RecordingError, match=words):
        read_recording(tmp_path / "bad.parquet")
