"""Figures of several commands share a result file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import record
from bench.first_release import figures
from bench.record import Figure, merge_result


def test_merged_figures_leave_those_of_other_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    merge_result("suite", "make test", [Figure("make_test_seconds", 700.0, "s", 900.0)])
    merge_result("suite", "make bench-first-release", [Figure("first", 50.0, "s", 60.0)])
    path = merge_result("suite", "make bench-first-release", [Figure("first", 40.0, "s", 60.0)])
    document = json.loads(path.read_text())
    values = {figure["name"]: figure["value"] for figure in document["figures"]}
    assert values == {"make_test_seconds": 700.0, "first": 40.0}
    assert list(document["merged"]) == ["make bench-first-release"]


def test_first_release_is_judged_by_the_median_and_tells_the_worst() -> None:
    told = figures([{"released": seconds} for seconds in (30.0, 80.0, 40.0)])
    assert [(one.value, one.goal) for one in told] == [(40.0, 60.0), (80.0, 60.0)]
