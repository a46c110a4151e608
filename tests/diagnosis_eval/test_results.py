"""What is written down: every figure or its absence, the page, the pictures, the fleet's counts."""

from __future__ import annotations

import json
from pathlib import Path

from edge_agent.diagnosis.findings import Cause
from pointillist.diagnosis.evaluation import Evaluation
from pointillist.diagnosis.incident_rates import incident_rates, write_rates
from pointillist.diagnosis.page import page
from pointillist.diagnosis.plots import pictures
from pointillist.diagnosis.results import results_of
from pointillist.diagnosis.splits import Why
from tests.diagnosis_runs_kit import CALM_S

ASKED = {
    "macro_f1_heldout", "macro_f1_heldout_rhythm_only", "accuracy_heldout", "gpu_fault_f1",
    "early_warning_lead_s", "early_warning_precision", "open_set_auroc", "detect_p95_s",
    "cause_p95_s", "false_alarms_per_host_day", "false_alarm_worker_hours",
    "false_incidents_per_host_week",
}  # fmt: skip


def test_results_have_each_figure_or_its_absence(evaluation: Evaluation) -> None:
    results = results_of(evaluation)
    names = {one.name for one in results.lines}
    assert names | set(results.absent) >= ASKED
    assert "gpu_fault_f1" in results.absent
    assert "nic_limit_or_loss" in results.absent["classes"]


def test_results_count_hours_of_held_out_calm_runs_alone(evaluation: Evaluation) -> None:
    hours = next(o.value for o in results_of(evaluation).lines if o.name.endswith("worker_hours"))
    calm = sum(Why.NO_FAULT in why for why in evaluation.divided.held_out.values())
    assert calm >= 1
    assert abs(hours - calm * (70 - CALM_S - 12) / 3600) < 1e-6


def test_page_and_pictures_hold_every_method(evaluation: Evaluation) -> None:
    results = results_of(evaluation)
    figures = [
        {"name": one.name, "value": one.value, "unit": one.unit, "goal": one.goal}
        for one in results.lines
    ]
    document = {
        "date": "2026-01-01T00:00:00Z", "commit": "c", "device": "a machine", "command": "make it",
        "figures": figures, "absent": results.absent,
        "tables": json.loads(json.dumps(results.tables, allow_nan=False)),
    }  # fmt: skip
    drawn = pictures(document["tables"])
    text = page(document, drawn, "images")
    assert {"methods", "confusion"} <= set(drawn)
    assert all(svg.startswith("<svg") for svg, _ in drawn.values())
    assert all(f"| {one.name} |" in text for one in evaluation.compared)
    assert "images/confusion.svg" in text


def test_incident_rates_count_one_fault_a_run(evaluation: Evaluation, tmp_path: Path) -> None:
    rates = incident_rates(evaluation.shipped, "hand rules 1", "made up")
    write_rates(tmp_path / "rates.json", rates)
    told = json.loads((tmp_path / "rates.json").read_text())
    assert told == rates
    assert told["classes"] == [str(cause) for cause in Cause]
    assert told["trials"][list(Cause).index(Cause.DISK_IO)] == 2
    assert all(sum(row) <= n for row, n in zip(told["counts"], told["trials"], strict=True))
    assert sum(map(sum, told["counts"])) > 0
    assert len((tmp_path / "rates.json").read_text().splitlines()) < 80
