"""Judging by runs left out: no run by a model that saw it, none by the hand rules in disguise."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pointillist.teaching import comparison as module
from pointillist.teaching.comparison import left_out, single_causes
from pointillist.teaching.method_port import Prepared
from pointillist.teaching.methods.learned import Learned

pytestmark = pytest.mark.slow


def of(prepared: Sequence[Prepared], *names: str) -> list[Prepared]:
    return [run for run in prepared if run.name in names]


def test_run_is_judged_by_a_model_that_knows_its_cause_but_not_itself(
    prepared: Sequence[Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    taught: list[set[str]] = []
    fit = Learned.fit

    def watched(self: Learned, runs: Sequence[Prepared]) -> None:
        taught.append({run.name for run in runs})
        fit(self, runs)

    monkeypatch.setattr(Learned, "fit", watched)
    monkeypatch.setattr(module, "MOST_FOLDS", 3)
    runs = of(
        prepared, "cpu_contention-stress-low", "cpu_contention-stress-high", "disk_io-stress-low",
        "disk_io-stress-high", "memory_pressure-stress-high",
    )  # fmt: skip
    found = left_out(runs, "logistic", "none", lambda _: None)
    assert found.single == ("memory_pressure",)
    assert (found.runs, found.faults) == (4, 4)
    assert len(taught) == 3
    for names in taught:
        assert {name.split("-")[0] for name in names} == {
            "cpu_contention", "disk_io", "memory_pressure",
        }  # fmt: skip
        assert names < {run.name for run in runs}


def test_nothing_is_judged_where_each_cause_has_one_run(prepared: Sequence[Prepared]) -> None:
    runs = of(prepared, "cpu_contention-stress-high", "disk_io-stress-high")
    assert single_causes(runs) == ("cpu_contention", "disk_io")
    found = left_out(runs, "logistic", "none", lambda _: None)
    assert np.isnan(found.macro_f1)
    assert found.runs == 0
    assert found.rules_are_better
