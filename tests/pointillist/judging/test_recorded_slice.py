"""A slice of the committed recordings, judged as figures are: real seconds, not made-up ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnosis.detect.findings import Cause
from pointillist.judging.results import Evaluation, evaluate
from pointillist.judging.runs import RunKind, labelled_paths, read_run
from pointillist.judging.splits import split

pytestmark = pytest.mark.slow

RECORDINGS = Path(__file__).resolve().parents[3] / "bench" / "recordings"
SLICE = 8


@pytest.fixture(scope="module")
def recorded() -> Evaluation:
    """Every n-th recording, eight in all."""
    if not any(RECORDINGS.glob("*.parquet")):
        pytest.skip("nothing is recorded: bench/recordings is empty")
    paths = labelled_paths(RECORDINGS)
    chosen = paths[:: max(1, len(paths) // SLICE)][:SLICE]
    return evaluate(map(read_run, chosen), lambda _: None)


def test_recorded_faults_are_felt_as_their_injectors_say(recorded: Evaluation) -> None:
    faults = [run for run in recorded.all_runs if run.kind is RunKind.FAULT]
    felt = [one.episode for run in faults for one in run.outcomes]
    assert all(one.rise is not None for one in felt)
    assert any(one.impact for one in felt)


def test_recorded_faults_with_impact_are_mostly_detected(recorded: Evaluation) -> None:
    outcomes = [
        one
        for run in recorded.all_runs
        for one in run.outcomes
        if one.episode.impact and Cause.UNKNOWN not in one.episode.causes
    ]
    found = sum(one.detect_s is not None for one in outcomes)
    assert found > len(outcomes) / 2


def test_recorded_runs_are_divided_by_their_names_alone(recorded: Evaluation) -> None:
    assert split(recorded.facts) == split(reversed(recorded.facts))
