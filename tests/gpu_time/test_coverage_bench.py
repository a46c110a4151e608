"""The benchmark of intervals beside the library itself."""

from __future__ import annotations

import pytest

from bench.gpu_time_coverage import library_figures
from bench.gpu_time_mock import measured


@pytest.mark.slow
def test_what_the_library_records_is_compared_with_what_a_program_did() -> None:
    found = measured(4.0, 1)
    singles = [outcome for outcome in found if outcome.windows == 1]
    assert len(singles) >= 14
    assert 0 < sum(o.value_ns for o in singles) < 10 * sum(o.truth_ns for o in singles)
    names = [figure.name for figure in library_figures(found)]
    assert "library_time_coverage_percent" in names
