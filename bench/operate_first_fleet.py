"""From nothing to a released number: `fleet init` and `fleet up`, as an operator types them.

With the shipped defaults (500 hosts, windows of 30 s) over the embedded log. Reading the page is
not counted, nor is the installation, which `make bench-first-release` measures.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.parts import Measured, Part, Parts
from bench.record import ROOT, Figure

GOAL_MIN: Final = 15.0
_LONGEST_S: Final = 1_800


def measure(kept: Parts) -> Measured:
    """Bring a trial up once."""
    found = kept.get("first_fleet", _first_fleet)
    total_min = (found["init_s"] + found["up_s"]) / 60
    return Measured(
        [
            Figure("first_fleet_minutes_to_release", total_min, "min", GOAL_MIN),
            Figure("first_fleet_commands_to_release", 2, "commands"),
            Figure("first_fleet_hosts_released", found["hosts"], "hosts"),
        ]
    )


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
