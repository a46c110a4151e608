"""What is written down: every figure or its absence, the picture, the fleet's counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.diagnosis_figures import confusion_picture
from diagnosis.detect.findings import Cause
from diagnosis.detect.rules import RULES_TITLE
from pointillist.judging.outcomes import Alarm
from pointillist.judging.results import Evaluation, Results, incident_rates, results_of, write_rates
from tests.diagnosis_runs_kit import CALM_S

pytestmark = pytest.mark.slow

ASKED = {
    "macro_f1_heldout", "macro_f1_heldout_rhythm_only", "accuracy_heldout", "gpu_fault_f1",
    "detect_p95_s", "cause_p95_s", "false_alarms_per_host_day", "false_alarm_worker_hours",
    "false_incidents_per_host_week",
}  # fmt: skip
NOTHING_JUDGED = {
    "causes": [str(cause) for cause in Cause],
    "diagnoses": [[0] * (len(Cause) + 1)] * (len(Cause) + 1),
}


def test_results_have_each_figure_or_its_absence(results: Results) -> None:
    names = {one.name for one in results.lines}
    assert names | set(results.absent) >= ASKED
    assert "gpu_fault_f1" in results.absent
    assert "nic_limit_or_loss" in results.absent["classes"]


def test_results_count_hours_of_held_out_calm_runs_alone(
    evaluation: Evaluation, results: Results
) -> None:
    hours = next(one.value for one in results.lines if one.name.endswith("worker_hours"))
    calm = [one for one in evaluation.divided.held_out if one.startswith("calm-")]
    assert calm
    assert abs(hours - len(calm) * (70 - CALM_S - 12) / 3600) < 1e-6


def test_alarms_of_quiet_hours_stand_in_the_confusion_and_cost_no_precision(
    evaluation: Evaluation, results: Results
) -> None:
    quiet = next(run for run in evaluation.held_out if run.quiet)
    alarm = Alarm(quiet.run, "/job", 40, Cause.DISK_IO, None, False)
    loud = replace(quiet, alarms=(*quiet.alarms, alarm))
    held_out = tuple(loud if run is quiet else run for run in evaluation.held_out)
    before = results.tables
    after = results_of(replace(evaluation, held_out=held_out)).tables
    counts = (np.array(one["confusion"]["diagnoses"]) for one in (after, before))
    added = np.subtract(*counts)
    assert added.sum() == added[-1, list(Cause).index(Cause.DISK_IO)] == 1
    assert after["classes"] == before["classes"]


def test_picture_is_drawn_where_a_fault_was_judged(results: Results) -> None:
    tables = json.loads(json.dumps(results.tables, allow_nan=False))
    assert confusion_picture(tables).startswith("<svg")
    assert confusion_picture({**tables, "confusion": NOTHING_JUDGED}) == ""


def test_tables_divide_all_faults(results: Results) -> None:
    tables = results.tables
    for rows in tables["by"].values():
        assert sum(row["faults"] for row in rows) == sum(row["faults"] for row in tables["classes"])
    assert [row["intensity"] for row in tables["by"]["intensity"]] == ["middle", "high"]
    assert {row["injector"] for row in tables["by"]["injector"]} == {"stress", "twin", "stop"}


def test_incident_rates_count_one_fault_a_run(evaluation: Evaluation, tmp_path: Path) -> None:
    rates = incident_rates(evaluation.held_out, "made up")
    write_rates(tmp_path / "rates.json", rates)
    told = json.loads((tmp_path / "rates.json").read_text())
    assert told == rates
    assert told["model"] == RULES_TITLE
    assert told["classes"] == [str(cause) for cause in Cause]
    assert told["trials"][list(Cause).index(Cause.DISK_IO)] == 2
    assert all(sum(row) <= n for row, n in zip(told["counts"], told["trials"], strict=True))
    assert sum(map(sum, told["counts"])) > 0
    assert len((tmp_path / "rates.json").read_text().splitlines()) < 80
