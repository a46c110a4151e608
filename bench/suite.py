"""How long the tests take on this machine, and how many there are: make bench-suite.

Reads what scripts/run_tests.py counted of the newest `make test` and `make test-quick`.
"""

from __future__ import annotations

import json
from typing import Any, Final

from bench.parts import Measured, Parts
from bench.record import Figure
from scripts.run_tests import summary_file

WHOLE_GOAL_S: Final = 360
QUICK_GOAL_S: Final = 120


def measure(_kept: Parts) -> Measured:
    """Give times and counts of both runs; a test that failed is wrong."""
    whole, quick = (_read(quick) for quick in (False, True))
    failed = whole["failed"] + quick["failed"]
    figures = [
        Figure("make_test_seconds", whole["seconds"], "s", WHOLE_GOAL_S),
        Figure("tests_collected", whole["tests"], "tests"),
        Figure("tests_skipped", whole["skipped"], "tests"),
        Figure("tests_retried", whole["retried"], "tests", 0),
        Figure("tests_failed", whole["failed"], "tests", 0),
        Figure("make_test_quick_seconds", quick["seconds"], "s", QUICK_GOAL_S),
        Figure("tests_quick", quick["tests"], "tests"),
    ]
    return Measured(figures, wrong=[f"expected no test to fail, {failed} did"] if failed else ())


def _read(quick: bool) -> dict[str, Any]:
    path = summary_file(quick)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if found.get("arguments") != []:
        raise SystemExit(f"expected a whole run in {path}: `make test{'-quick' * quick}` makes it")
    return found
