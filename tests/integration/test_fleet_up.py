"""From nothing to a released number by two commands, as the page of a first fleet has them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.fleet_kit import fleet_folder
from tests.golden_kit import noted

pytestmark = pytest.mark.release

LONGEST_S = 600


def run(*words: str) -> dict[str, Any]:
    """Run one command; give its answer."""
    done = subprocess.run(
        [sys.executable, "-m", "pointillist", *words, "--json"],
        capture_output=True, text=True, check=False, timeout=LONGEST_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "This is a trial" in done.stderr
    return dict(json.loads(noted(words, done.stdout)))


@pytest.mark.timeout(LONGEST_S)
def test_a_trial_comes_from_nothing_to_a_released_number() -> None:
    with fleet_folder() as base:
        folder = str(base / "trial")
        made = run("fleet", "init", folder, "--hosts", "40", "--window-s", "10", "--windows", "60")
        assert made["simulated_hosts"] == 39
        first = run("fleet", "up", folder, "--until-release")
        assert (first["released"], first["trial"]) == (True, True)
        assert first["hosts"] >= 32
        # It can be gone on with, and asks nobody to enrol twice.
        later = run("fleet", "up", folder, "--until-release")
        assert later["window_start"] > first["window_start"]
