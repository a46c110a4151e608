"""The benchmark of intervals beside the library itself."""

from __future__ import annotations

import pytest

from bench.gpu_time_coverage import Outcome, library_figures, measured

MOST_TRIES = 12
"""A third of what a test is given; a quiet machine needs one."""


@pytest.mark.release
def test_what_the_library_records_is_compared_with_what_a_program_did() -> None:
    found: list[Outcome] = []
    for _ in range(MOST_TRIES):  # a busy machine has spans that are left out
        found += measured(3.0, 1)
        if len(found) >= 50:
            break
    assert len(found) >= 50
    singles = [outcome for outcome in found if outcome.windows == 1]
    assert 0 < sum(o.value_ns for o in singles) < 10 * sum(o.truth_ns for o in singles)
    assert any(outcome.error_ns is not None for outcome in found)
    names = [figure.name for figure in library_figures(found)]
    assert "library_time_coverage_percent" in names
