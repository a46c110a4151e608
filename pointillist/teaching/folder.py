"""A folder of recordings, in the order of their names; those without labels are passed over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from diagnosis.frames.recording import read_meta, read_recording

from .recorded_runs import RecordedRun, RunRefused, facts_of

LABELS = frozenset({"workload", "seed", "spans"})
"""What the facts of a labelled recording name at least."""


def run_paths(folder: Path) -> list[Path]:
    """List a folder's recordings, those below it included.

    Raises      RunRefused where there is none
    """
    found = sorted(folder.rglob("*.parquet")) if folder.is_dir() else [folder]
    if not found:
        raise RunRefused(f"{folder}: expected recordings (*.parquet), found none")
    return found


def labelled_paths(folder: Path) -> list[Path]:
    """List the recordings whose facts say what was done.

    Raises      RunRefused where none does
    """
    found = [path for path in run_paths(folder) if set(read_meta(path)) >= LABELS]
    if not found:
        named = ", ".join(sorted(LABELS))
        raise RunRefused(f"{folder}: expected recordings that name {named}, found none")
    return found


def read_run(path: Path) -> RecordedRun:
    """Read a labelled recording.

    Raises      RunRefused, diagnosis.frames.recording.RecordingError
    """
    recording = read_recording(path)
    return RecordedRun(facts_of(path.stem, recording.meta, recording.frames), recording.frames)


def runs_in(folder: Path) -> Iterator[RecordedRun]:
    """Read the labelled runs of a folder, one at a time.

    Raises      RunRefused, diagnosis.frames.recording.RecordingError
    """
    yield from map(read_run, labelled_paths(folder))
