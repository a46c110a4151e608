"""What is written down: every figure or its absence, the page, its picture, the fleet's counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from diagnosis.detect.findings import Cause
from diagnosis.detect.rules import RULES_TITLE
from pointillist.judging.evaluation import Evaluation
from pointillist.judging.outcomes import Alarm
from pointillist.judging.page import WORDS, confusion_picture, figures, misses, page, verdict
from pointillist.judging.results import Results, incident_rates, results_of, write_rates
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


def test_page_holds_every_figure_and_the_picture_every_fault(results: Results) -> None:
    lines = [
        {"name": one.name, "value": one.value, "unit": one.unit, "goal": one.goal}
        for one in results.lines
    ]
    document = {
        "date": "2026-01-01T00:00:00Z", "commit": "c", "device": "a machine", "command": "make it",
        "figures": lines, "absent": results.absent,
        "tables": json.loads(json.dumps(results.tables, allow_nan=False)),
    }  # fmt: skip
    text = page(document, "images/confusion.svg")
    assert all(WORDS[name] in text for name in ASKED - set(results.absent))
    assert all(f"`{row['cause']}`" in text for row in results.tables["classes"])
    assert "](images/confusion.svg)" in text
    assert confusion_picture(document["tables"]).startswith("<svg")
    nothing = {**document["tables"], "confusion": NOTHING_JUDGED}
    assert confusion_picture(nothing) == ""
    assert max(len(row.split("|")) - 2 for row in text.splitlines() if row[:1] == "|") <= 8


def test_page_divides_faults_and_puts_wrong_answers_together(results: Results) -> None:
    tables = results.tables
    for rows in tables["by"].values():
        assert sum(row["faults"] for row in rows) == sum(row["faults"] for row in tables["classes"])
    assert [row["intensity"] for row in tables["by"]["intensity"]] == ["middle", "high"]
    assert {row["injector"] for row in tables["by"]["injector"]} == {"stress", "twin", "stop"}
    wrong = {"cause": "disk_io", "injector": "twin", "intensity": "high", "answer": "nothing"}
    text = misses(
        [wrong | {"rise": 2.0}, wrong | {"rise": 3.5, "intensity": "middle"}], {"twin": 5}
    )
    assert "| `disk_io` | `twin` | nothing | 2 of 5 | high 1, middle 1 | 2.0 to 3.5 |" in text


def test_figures_of_the_page_have_their_interval_and_verdict_in_one_row() -> None:
    text = figures([
        {"name": "macro_f1_heldout", "value": 0.83, "unit": "F1", "goal": 0.92},
        {"name": "macro_f1_heldout_low", "value": 0.7, "unit": "F1", "goal": None},
        {"name": "macro_f1_heldout_high", "value": 1.0, "unit": "F1", "goal": None},
        {"name": "detect_p95_s", "value": 1.98, "unit": "s", "goal": 3.0},
    ])  # fmt: skip
    assert "| **0.83** | 0.70 to 1 | 0.92 | **missed** |" in text
    assert "| **1.98** |  | 3 | met |" in text
    assert "heldout_low" not in text


def test_goal_that_few_runs_meet_is_not_called_proven() -> None:
    values = {
        "macro_f1_heldout": 0.97, "macro_f1_heldout_low": 0.8, "false_alarms_per_host_day": 0.0,
        "false_alarms_per_host_day_upper": 12.0, "detect_p95_s": 4.0,
    }  # fmt: skip
    goals = {"macro_f1_heldout": 0.95, "false_alarms_per_host_day": 0.0, "detect_p95_s": 3.0}
    told = {
        name: verdict({"name": name, "value": values[name], "goal": goal}, values)
        for name, goal in goals.items()
    }
    assert told == {
        "macro_f1_heldout": "met, not proven",
        "false_alarms_per_host_day": "met, not proven",
        "detect_p95_s": "**missed**",
    }


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
