"""Made GPU faults, as they are recorded: how they are judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.diagnosis.gpu_figures import FOLDER, judged_cases
from diagnosis.detect.findings import Cause
from pointillist.judging.figures import GPU_CAUSES, class_rows, macro_f1, pairs_of


def test_macro_f1_counts_misses_and_false_alarms() -> None:
    limit, fault = Cause.GPU_THERMAL_OR_POWER_LIMIT, Cause.GPU_HARDWARE_FAULT
    pairs = [(limit, limit), (limit, None), (fault, fault), (None, fault), (None, Cause.UNKNOWN)]
    rows = {row.cause: (row.precision, row.recall) for row in class_rows(pairs, GPU_CAUSES)}
    assert rows == {limit: (1, 0.5), fault: (0.5, 1)}
    assert macro_f1(pairs, GPU_CAUSES) == pytest.approx(2 / 3)


def test_recorded_gpu_faults_are_named(tmp_path: Path) -> None:
    """A slice of the committed recordings, one held-out case of each cause."""
    chosen = ("gpu-power_brake-high-1", "gpu-xid119_gsp-high-1", "gpu-time_slice-middle-1",
              "gpu-link_narrow-middle-1", "gpu-none-1")  # fmt: skip
    for name in chosen:
        (tmp_path / f"{name}.parquet").symlink_to(FOLDER / f"{name}.parquet")
        assert (FOLDER / f"{name}.parquet").stat().st_size < 40_000
    cases = judged_cases(tmp_path)
    assert all(case.held_out for case in cases)
    said = {pair for case in cases for pair in pairs_of(case.judged, quiet=True)}
    assert said == {(one, one) for one in Cause if one.value.startswith(("gpu_", "pcie"))}
