"""How long the tests take on this machine: make bench-suite; a newcomer: make bench-first-release.

The tests are those that scripts/run_tests.py counted of the newest `make test`, `make test-quick`
and `make test-all`. A newcomer goes from `git clone` to the first number that `make demo` releases:
each run has a new folder that its owner alone may enter, as a home folder is, and clones, installs,
plays until the first window is out. The package cache alone is kept between runs.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from bench.parts import Measured, Parts
from bench.record import ROOT, Figure
from scripts.run_tests import summary_file

WHOLE_GOAL_S: Final = 360
QUICK_GOAL_S: Final = 120
ALL_GOAL_S: Final = 1800
GOAL_S: Final = 60.0
RUNS: Final = 5
LONGEST_S: Final = 600.0
_STAGES: Final = {
    "cloned": "Installing Python packages",
    "installed": "starting Leader",
    "enrolled": "hosts enrolled",
    "released": "window 1 of",
}
"""What a run has reached when the demo prints the words."""


def measure(_kept: Parts) -> Measured:
    """Give times and counts of the three runs; a test that failed is wrong."""
    runs = [_read(run) for run in ("", "quick", "all")]
    whole, quick, release = runs
    failed, retried = (sum(run[name] for run in runs) for name in ("failed", "retried"))
    figures = [
        Figure("make_test_seconds", whole["seconds"], "s", WHOLE_GOAL_S),
        Figure("tests_collected", whole["tests"], "tests"),
        Figure("tests_retried", retried, "tests", 0),
        Figure("tests_failed", failed, "tests", 0),
        Figure("make_test_quick_seconds", quick["seconds"], "s", QUICK_GOAL_S),
        Figure("tests_quick", quick["tests"], "tests"),
        Figure("make_test_all_seconds", release["seconds"], "s", ALL_GOAL_S),
        Figure("tests_all", release["tests"], "tests"),
    ]
    return Measured(figures, wrong=[f"expected no test to fail, {failed} did"] if failed else ())


def _read(run: str) -> dict[str, Any]:
    path = summary_file(run)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if found.get("arguments") not in ([], ["-rs"]):
        raise SystemExit(f"expected a whole run in {path}: `make test{run and '-'}{run}` makes it")
    return found


def newcomers(kept: Parts) -> Measured:
    """Be a newcomer some times, with a warm cache; print the seconds to each stage."""
    _fill_cache()
    runs = []
    for number in range(1, kept.scaled(RUNS) + 1):
        runs.append(first_release())
        stages = ", ".join(f"{name} {runs[-1][name]:.1f} s" for name in _STAGES)
        print(f"run {number}: {stages}", flush=True)
    return Measured(figures(runs))


def figures(runs: Sequence[Mapping[str, float]]) -> list[Figure]:
    """Give median and worst of the runs' last stage."""
    released = [run["released"] for run in runs]
    return [
        Figure("first_release_seconds_warm", statistics.median(released), "s", GOAL_S),
        Figure("first_release_seconds_warm_worst", max(released), "s", GOAL_S),
    ]


def first_release() -> dict[str, float]:
    """Be a newcomer once; give the seconds to each stage.

    Raises      RuntimeError with what was printed, where the first release does not come
    """
    with tempfile.TemporaryDirectory() as folder:  # 0700
        began_s = time.monotonic()
        _clone(Path(folder))
        demo = _make(Path(folder) / "pointillist", "demo", "ARGS=--windows 2")
        try:
            return _stages(demo, began_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(demo.pid, signal.SIGINT)
            demo.communicate()


def _fill_cache() -> None:
    with tempfile.TemporaryDirectory() as folder:
        _clone(Path(folder))
        said, _ = _make(Path(folder) / "pointillist", "setup").communicate(timeout=LONGEST_S)
        sys.stdout.write(said)


def _clone(folder: Path) -> None:
    subprocess.run(["git", "clone", "--quiet", ROOT, "pointillist"], cwd=folder, check=True)


def _make(checkout: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["make", *words],
        cwd=checkout,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )


def _stages(demo: subprocess.Popen[str], began_s: float) -> dict[str, float]:
    reached: dict[str, float] = {}
    printed = []
    for line in demo.stdout or ():
        printed.append(line)
        for name, words in _STAGES.items():
            if name not in reached and words in line:
                reached[name] = time.monotonic() - began_s
        if "released" in reached:
            return reached
    raise RuntimeError(f"expected a released window, got:\n{''.join(printed[-20:])}")
