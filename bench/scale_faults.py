"""What a fleet outlives: every fault of docs/faults.md, and schedules of faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.parts import Measured, Part, Parts
from bench.record import ROOT, Figure
from tests.fault_cases import CASES
from tests.fault_points import FOLDER
from tests.schedules.campaign import MOST_SEEDS, find_bug, play_blocks
from tests.schedules.planted import PLANTED, Planted

CASES_GOAL: Final = 24
SCHEDULES: Final = 10_000
BUGS_GOAL: Final = 10


def measure(kept: Parts) -> Measured:
    """Run the tests of every case, a file at a time."""
    outcomes: list[Part] = []
    for file in files():
        outcomes += kept.get(f"faults-{file.stem}", partial(run, file))["outcomes"]
    return Measured(figures(outcomes))


def files() -> list[Path]:
    every = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path for path in every if "mark.fault_case(" in path.read_text(encoding="utf-8")]


def run(file: Path) -> Part:
    """Run a file's cases; a test that fails is part of what is found."""
    with TemporaryDirectory(prefix="plst-") as folder:
        command = [sys.executable, "-m", "pytest", "-q", "--force-reruns=0", "-m", "fault_case"]
        subprocess.run(
            [*command, "--show-capture=no", "--tb=short", str(file)],
            cwd=ROOT, env={**os.environ, FOLDER: folder}, check=False,
        )  # fmt: skip
        found = [json.loads(path.read_text()) for path in sorted(Path(folder).iterdir())]
    return {"outcomes": found}


def withstood(outcomes: Sequence[Part]) -> list[str]:
    """The cases all of whose tests passed, and all of whose points were reached."""
    names = []
    for one in CASES:
        mine = [outcome for outcome in outcomes if one.name in outcome["cases"]]
        reached = {point for outcome in mine for point in outcome["reached"]}
        if mine and reached >= set(one.points) and all(outcome["passed"] for outcome in mine):
            names.append(one.name)
    return names


def figures(outcomes: Sequence[Part]) -> list[Figure]:
    """Count what was withstood and lost."""

    def total(name: str) -> int:
        return sum(int(outcome[name]) for outcome in outcomes)

    return [
        Figure("fault_cases", len(withstood(outcomes)), "cases", CASES_GOAL),
        Figure("fault_cases_failed", len(CASES) - len(withstood(outcomes)), "cases", 0),
        Figure("fault_windows_released", total("windows"), "windows"),
        Figure("windows_lost", total("windows_lost"), "windows", 0),
        Figure("reports_lost_or_double", total("reports_lost_or_double"), "reports", 0),
    ]


def schedules(kept: Parts) -> Measured:
    """Play random schedules of faults in blocks, then look for each planted bug."""
    blocks = [block for _, block in play_blocks(kept, 0, SCHEDULES)]
    seeds = [kept.get(f"planted-{bug.name}", partial(_look, bug)) for bug in PLANTED]
    found = [one["seed"] for one in seeds if one["seed"] is not None]
    played, cpu_s = sum(b.schedules for b in blocks), sum(b.cpu_s for b in blocks)
    windows = sum(b.windows_released for b in blocks)
    return Measured([
        Figure("schedules_run", played, "schedules", SCHEDULES),
        Figure("schedules_failed", sum(len(b.failed) for b in blocks), "schedules", 0),
        Figure("schedules_windows_released", windows, "windows"),
        Figure("schedules_per_core_second", played / cpu_s, "schedules/s of one core"),
        Figure("planted_bugs", len(PLANTED), "bugs"),
        Figure("planted_bugs_found", len(found), "bugs", BUGS_GOAL),
        Figure("planted_bugs_schedules", max(found, default=0) + 1, "schedules for the last"),
    ])  # fmt: skip


def _look(bug: Planted) -> Part:
    return {"seed": find_bug(bug, range(MOST_SEEDS))}
