"""What running a fleet takes from people: parts of make bench-operate that need little code."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.parts import Measured, Part, Parts
from bench.record import CACHE, ROOT, Figure
from tests.fuzz.fuzzing import Fuzzing

FUZZ_GOAL_HOURS: Final = 8.0
"""An hour for each parser."""
FLEET_GOAL_MIN: Final = 15.0
_LONGEST_S: Final = 1_800


def fuzzed(_kept: Parts) -> Measured:
    """Sum up what every parser of a stranger's bytes was fuzzed for, and what broke it.

    Nothing is run here: `make fuzz` writes down what it spent, over all its runs.
    """
    spent = Fuzzing(CACHE / "fuzz").spent.values()
    hours = [target.cpu_s / 3600 for target in spent]
    return Measured([
        Figure("fuzz_hours", sum(hours), "h", FUZZ_GOAL_HOURS),
        Figure("fuzz_hours_least_of_a_parser", min(hours), "h", 1.0),
        Figure("fuzz_inputs", sum(target.executions for target in spent), ""),
        Figure("fuzz_crashes", sum(target.open for target in spent), "", 0.0),
        Figure("fuzz_crashes_mended", sum(target.crashes - target.open for target in spent), ""),
    ])  # fmt: skip


def first_fleet(kept: Parts) -> Measured:
    """Time `fleet init` and `fleet up`, as an operator types them, up to a released number.

    With the shipped defaults (500 hosts, windows of 30 s) over the embedded log. Reading the page
    is not counted, nor is the installation, which `make bench-first-release` measures.
    """
    found = kept.get("first_fleet", _first_fleet)
    total_min = (found["init_s"] + found["up_s"]) / 60
    return Measured([
        Figure("first_fleet_minutes_to_release", total_min, "min", FLEET_GOAL_MIN),
        Figure("first_fleet_commands_to_release", 2, "commands"),
        Figure("first_fleet_hosts_released", found["hosts"], "hosts"),
    ])  # fmt: skip


def _first_fleet() -> Part:
    with tempfile.TemporaryDirectory(prefix="plst-first-fleet-") as name:
        base = Path(name).resolve()
        base.chmod(0o755)
        folder = str(base / "trial")
        _, init_s = _timed("fleet", "init", folder)
        released, up_s = _timed("fleet", "up", folder, "--until-release")
    return {"init_s": init_s, "up_s": up_s, "hosts": released["hosts"]}


def _timed(*words: str) -> tuple[dict[str, Any], float]:
    """Run one command; give its answer and how long it took, seconds.

    Raises      CalledProcessError
    """
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pointillist", *words, "--json"],
        stdout=subprocess.PIPE, check=True, text=True, timeout=_LONGEST_S, cwd=ROOT,
    )  # fmt: skip
    return dict(json.loads(done.stdout)), time.monotonic() - began_s
