"""Attacks as tests: each has to fail on the tree before its mend, and pass here."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Final

from bench.parts import Measured, Part, Parts
from bench.record import ROOT, Figure
from tests.upgrade.old_tree import unpack

BEFORE: Final = "3537c091a839e253583504859a76fe06247e1fb0"
FOLDER: Final = "tests/attacks"
FINDINGS: Final = (
    "presence", "reshaped_section", "forgetful_witness", "series_collision", "two_agents",
    "role_swap", "empty_cohort", "epoch_drift",
)  # fmt: skip
FAILED: Final = 1  # of pytest; what cannot be imported ends with 2
LONGEST_S: Final = 300


def measure(kept: Parts) -> Measured:
    before, now = (
        kept.get(f"attacks_{when}", partial(_played, commit))
        for when, commit in (("before", BEFORE), ("now", ""))
    )
    red = sum(before[name] == FAILED for name in FINDINGS)
    wrong = [f"{name}: expected to pass, pytest ended with {now[name]}" for name in FINDINGS
             if now[name]]  # fmt: skip
    figure = Figure("attacks_red_before", red, "tests that the code before fails", goal=8)
    return Measured([figure], wrong=wrong)


def _played(commit: str) -> Part:
    """Give pytest's exit code of each, in a commit's tree or, without one, in this."""
    with tempfile.TemporaryDirectory() as folder:
        tree = ROOT
        if commit:
            tree = unpack(commit, Path(folder))
            copytree(ROOT / FOLDER, tree / FOLDER)
        return {name: _run(tree, name) for name in FINDINGS}


def _run(tree: Path, name: str) -> int:
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"{FOLDER}/test_{name}.py"],
        cwd=tree, env=os.environ | {"PYTHONPATH": str(tree)}, capture_output=True, check=False,
        timeout=LONGEST_S,
    )  # fmt: skip
    return done.returncode
