"""`pointillist diagnosis record`: frames of sources become a file, labelled by a person."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collectors.interface import SourceRegistry
from diagnosis.frames.framer import Framer, LiveFrames
from diagnosis.frames.recording import read_meta, read_recording
from pointillist.cli.diagnosis import _spans, capture
from pointillist.cli.output import CommandError
from pointillist.judging.runs import LABELS, RunKind, read_run
from tests.diagnosis_runs_kit import made_up_run

FRAMES = made_up_run("made", None).frames


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames come from a made-up run at once, and then someone presses Ctrl-C."""

    def frames(*_: object) -> object:
        yield from FRAMES
        raise KeyboardInterrupt

    monkeypatch.setattr(LiveFrames, "frames", frames)


def recorded(path: Path, cause: str | None, fault: tuple[float, float] | None) -> None:
    facts = {} if cause is None else {"workload": "own", "seed": 1, "class": cause, "intensity": ""}
    spans = _spans(cause, fault, None, "by hand")
    capture(path, SourceRegistry(), Framer(), None, facts, spans)


@pytest.mark.usefixtures("played")
def test_recording_labelled_by_a_person_teaches(tmp_path: Path) -> None:
    path = tmp_path / "disk.parquet"
    recorded(path, "disk_io", (30.0, 45.0))
    run = read_run(path)
    began_ns = FRAMES[0].boottime_ns - FRAMES[0].span_ns
    (fault,) = run.facts.faults
    assert (fault.cause, fault.injector) == ("disk_io", "by hand")
    assert (fault.start_ns - began_ns, fault.end_ns - began_ns) == (30 * 10**9, 45 * 10**9)
    assert run.facts.subjects == tuple(sorted({key for one in FRAMES for key in one.subjects}))
    assert len(run.frames) == len(FRAMES)


@pytest.mark.usefixtures("played")
def test_recording_without_a_class_is_kept_without_labels(tmp_path: Path) -> None:
    path = tmp_path / "night.parquet"
    recorded(path, None, None)
    assert not set(read_meta(path)) >= LABELS
    assert len(read_recording(path).frames) == len(FRAMES)


@pytest.mark.usefixtures("played")
def test_recording_of_a_calm_job_counts_as_one(tmp_path: Path) -> None:
    path = tmp_path / "calm.parquet"
    recorded(path, "none", None)
    assert read_run(path).facts.kind is RunKind.FAULT_FREE


@pytest.mark.usefixtures("played")
def test_recording_that_ended_before_its_fault_has_no_label(tmp_path: Path) -> None:
    path = tmp_path / "short.parquet"
    recorded(path, "disk_io", (3000.0, 3060.0))
    assert "spans" not in read_meta(path)


def test_recording_that_watched_nobody_is_no_calm_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = [replace(one, subjects={}) for one in FRAMES]
    monkeypatch.setattr(LiveFrames, "frames", lambda *_: iter(bare))
    recorded(tmp_path / "bare.parquet", "none", None)
    assert "spans" not in read_meta(tmp_path / "bare.parquet")


def test_recording_of_nothing_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LiveFrames, "frames", lambda *_: iter(()))
    with pytest.raises(CommandError, match="nothing was recorded"):
        recorded(tmp_path / "none.parquet", None, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("cause", "fault", "seconds", "named"),
    [
        (None, (30.0, 60.0), None, "--fault: expected --class"),
        ("slow", (30.0, 60.0), None, "--class: expected one of cpu_contention"),
        ("disk_io", None, None, "--class: expected --fault"),
        ("none", (30.0, 60.0), None, "--fault: expected a cause"),
        ("disk_io", (5.0, 60.0), None, "after 20 calm seconds"),
        ("disk_io", (30.0, 60.0), 50.0, "within --seconds"),
    ],
)
def test_wrong_label_is_named(
    cause: str | None, fault: tuple[float, float] | None, seconds: float | None, named: str
) -> None:
    with pytest.raises(CommandError, match=named):
        _spans(cause, fault, seconds, "by hand")
