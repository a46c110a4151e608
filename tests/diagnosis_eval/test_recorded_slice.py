"""A slice of the committed recordings, judged as figures are: real seconds, not made-up ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from diagnosis.detect.findings import Cause
from pointillist.teaching.method_port import Prepared
from pointillist.teaching.outcomes import judge
from pointillist.teaching.prepare import prepare
from pointillist.teaching.recorded_runs import RunKind, labelled_paths, read_run
from pointillist.teaching.splits import split

pytestmark = pytest.mark.slow

RECORDINGS = Path(__file__).resolve().parents[2] / "bench" / "recordings"
SLICE = 8


@pytest.fixture(scope="module")
def recorded() -> Sequence[Prepared]:
    """Every n-th recording, eight in all."""
    if not any(RECORDINGS.glob("*.parquet")):
        pytest.skip("nothing is recorded: bench/recordings is empty")
    paths = labelled_paths(RECORDINGS)
    return [prepare(read_run(path)) for path in paths[:: max(1, len(paths) // SLICE)][:SLICE]]


def test_recorded_faults_are_felt_as_their_injectors_say(recorded: Sequence[Prepared]) -> None:
    faults = [run for run in recorded if run.run.facts.kind is RunKind.FAULT]
    assert all(one.rise is not None for run in faults for one in run.episodes)
    assert any(one.impact for run in faults for one in run.episodes)


def test_recorded_faults_with_impact_are_mostly_detected(recorded: Sequence[Prepared]) -> None:
    outcomes = [
        one
        for run in recorded
        for one in judge(run.run, run.episodes, run.rules).outcomes
        if one.episode.impact and Cause.UNKNOWN not in one.episode.causes
    ]
    found = sum(one.detect_s is not None for one in outcomes)
    assert found > len(outcomes) / 2


def test_recorded_runs_are_divided_by_their_names_alone(recorded: Sequence[Prepared]) -> None:
    facts = [run.run.facts for run in recorded]
    assert split(facts) == split(reversed(facts))
