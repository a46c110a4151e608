"""Made-up runs, judged once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from diagnosis.detect.findings import Cause
from diagnosis.frames.recording import write_recording
from pointillist.judging import figures
from pointillist.judging.results import Evaluation, Results, evaluate, results_of
from pointillist.judging.runs import RecordedRun
from tests.diagnosis_runs_kit import made_up_run

CAUSES = (Cause.CPU_CONTENTION, Cause.DISK_IO, Cause.MEMORY_PRESSURE)


@pytest.fixture(scope="session", autouse=True)
def few_resamples() -> Iterator[None]:
    """No test here judges how wide an interval is."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(figures, "RESAMPLES", 40)
        yield


@pytest.fixture(scope="session")
def made_up_runs() -> Sequence[RecordedRun]:
    """Three causes by two injectors at three intensities, an unknown fault, calm runs."""
    runs = [
        made_up_run(f"{cause}-{injector}-{level}", cause, seed, injector, level, strength=strength)
        for number, cause in enumerate(CAUSES)
        for seed, (injector, level, strength) in enumerate(
            [("stress", "low", 0.6), ("stress", "high", 1.0), ("stress", "middle", 0.8),
             ("twin", "high", 1.0)],
            start=10 * number,
        )
    ]  # fmt: skip
    runs += [made_up_run(f"unnamed-{k}", Cause.UNKNOWN, 90 + k, "stop") for k in range(2)]
    return [*runs, *(made_up_run(f"calm-{k}", None, 70 + k) for k in range(3))]


@pytest.fixture(scope="session")
def evaluation(made_up_runs: Sequence[RecordedRun]) -> Evaluation:
    return evaluate(made_up_runs, lambda _: None)


@pytest.fixture(scope="session")
def results(evaluation: Evaluation) -> Results:
    return results_of(evaluation)


@pytest.fixture(scope="session")
def folder_of_recordings(
    made_up_runs: Sequence[RecordedRun], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("recordings")
    for run in made_up_runs:
        facts = run.facts
        meta = {
            "workload": facts.workload,
            "intensity": facts.intensity,
            "seed": facts.seed,
            "subjects": list(facts.subjects),
            "spans": [
                {"cause": str(f.cause), "injector": f.injector, "start_ns": f.start_ns,
                 "end_ns": f.end_ns}
                for f in facts.faults
            ],
        }  # fmt: skip
        write_recording(folder / f"{facts.name}.parquet", run.frames, meta)
    return folder
