"""Figures: precision pays for alarms, bounds hold what few hours allow, intervals by run."""

from __future__ import annotations

import numpy as np
import pytest

from diagnosis.detect.findings import Cause
from pointillist.judging.figures import (
    AlarmRate,
    Pair,
    accuracy,
    bootstrap,
    class_rows,
    confusion,
    macro_f1,
    poisson_upper,
)

CPU, DISK = Cause.CPU_CONTENTION, Cause.DISK_IO


def test_macro_f1_pays_for_alarms_without_a_fault() -> None:
    right: list[Pair] = [(CPU, CPU), (DISK, DISK)]
    assert macro_f1(right) == 1.0
    assert macro_f1([*right, (None, DISK)]) == pytest.approx((1 + 2 / 3) / 2)


def test_macro_f1_counts_a_miss_in_recall_alone() -> None:
    rows = {row.cause: row for row in class_rows([(CPU, None), (CPU, CPU), (DISK, DISK)])}
    assert (rows[CPU].precision, rows[CPU].recall) == (1.0, 0.5)
    assert accuracy([(CPU, None), (CPU, CPU), (None, DISK)]) == 0.5


def test_confusion_has_a_row_for_no_fault_and_a_column_for_nothing() -> None:
    found = np.array(confusion([(CPU, DISK), (CPU, None), (None, DISK)]))
    causes = list(Cause)
    assert found[causes.index(CPU), causes.index(DISK)] == 1
    assert found[causes.index(CPU), -1] == 1
    assert found[-1, causes.index(DISK)] == 1
    assert found.sum() == 3


def test_alarm_rate_without_alarms_is_bounded_by_its_hours() -> None:
    quiet = AlarmRate(0, 12.0)
    assert quiet.per(24) == 0.0
    assert quiet.upper(24) == pytest.approx(2 * 2.9957, abs=1e-3)  # the rule of three
    assert np.isnan(AlarmRate(0, 0.0).upper(24))


def test_poisson_upper_is_the_textbook_bound() -> None:
    assert poisson_upper(3) == pytest.approx(7.7537, abs=1e-3)


def test_bootstrap_resamples_whole_runs() -> None:
    def mean(values: object) -> float:
        return float(np.mean(np.asarray(values)))

    together = bootstrap([[0.0] * 50, [1.0] * 50], mean, resamples=200)
    assert (together.value, together.low, together.high) == (0.5, 0.0, 1.0)
