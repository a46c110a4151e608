"""What the library adds up, beside plain counts of the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.fake_library import built_program
from tests.gpu_time_kit import CUPTI

SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.parametrize(("check", "seeds"), [("busy_check", 1000), ("table_check", 20)])
def test_sums_are_those_of_a_plain_count(check: str, seeds: int) -> None:
    """Busy time, overlap and concurrency by the nanosecond; rows by name; all within bounds."""
    program = built_program(Path(__file__).parent / f"{check}.c", CUPTI, SANITIZED)
    found = subprocess.run(
        [program, str(seeds)], check=False, capture_output=True, text=True, timeout=60
    )
    assert (found.stdout, found.stderr, found.returncode) == ("", "", 0)
