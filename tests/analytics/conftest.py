"""A folder of releases that tests of frames share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analytics.rollup_kit import write_releases, write_suppressed
from tests.analytics.test_rollups import DAY, HOUR, START, WEEK, WIDE, minutes, release

SERIES = "every-kind"


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two weeks of few windows, a third that has begun."""
    releases = tmp_path_factory.mktemp("fleet") / "releases"
    starts = [START, START + DAY, START + WEEK - 60, START + WEEK, START + 2 * WEEK - 60]
    write_releases(releases, (release(start, task=WIDE) for start in starts))
    write_releases(releases, [release(START + 2 * WEEK, task=WIDE)])
    write_suppressed(releases, SERIES, minutes(START + 2 * WEEK + HOUR, 3), "batch_too_small")
    return releases
