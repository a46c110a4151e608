"""How long a device was busy, beside a count of every nanosecond."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.fake_library import built_program
from tests.gpu_time_kit import CUPTI


def test_busy_time_overlap_and_concurrency_are_those_of_a_plain_count() -> None:
    check = built_program(Path(__file__).parent / "busy_check.c", CUPTI)
    found = subprocess.run([check, "1000"], check=False, capture_output=True, text=True, timeout=60)
    assert (found.stdout, found.returncode) == ("", 0)
