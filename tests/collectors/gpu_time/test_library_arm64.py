"""The library of arm64 beside the fake CUPTI, on x86-64: the tests of the library, by qemu-user."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TOOLS = ("aarch64-linux-gnu-gcc", "qemu-aarch64-static")
SLOW = ("million", "however_long", "launches_little", "same_numbers")
"""Tests that take seconds there, and one whose program is too slow to be first at its numbers."""


@pytest.mark.release
@pytest.mark.skipif(platform.machine() != "x86_64", reason="arm64 is emulated on x86-64")
@pytest.mark.skipif(
    None in map(shutil.which, TOOLS), reason=f"needs {' and '.join(TOOLS)}, as test-all has them"
)
def test_library_of_arm64_counts_and_lives_beside_the_fake_cupti() -> None:
    files = [HERE / f"test_library_{name}.py" for name in ("counts", "lives")]
    passed_over = " and ".join(f"not {name}" for name in SLOW)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", passed_over, *files],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "POINTILLIST_TESTS_MACHINE": "aarch64"},
    )
    assert done.returncode == 0, done.stdout
    passed, skipped = re.findall(r"(\d+) passed, (\d+) skipped", done.stdout)[-1]
    assert int(passed) >= 29, done.stdout
    assert skipped == "1", done.stdout  # a program that executes itself
