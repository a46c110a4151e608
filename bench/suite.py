"""How long the tests take on this machine, and how many there are: make bench-suite.

Runs `make test` and `make test-quick` once each and keeps what scripts/run_tests.py counted.
ARGS=--newest takes the newest whole run as it is.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

from bench.record import ROOT, Figure, merge_result
from scripts.run_tests import SUMMARY

WHOLE_GOAL_S: Final = 360
QUICK_GOAL_S: Final = 120
BEFORE: Final = {"tests": 3447, "skipped": 10, "retried": 1, "failed": 1, "seconds": 971}
"""Of commit f0512a7, one test after the other, measured once on a machine like this one; 9 of the
skipped wanted data that was not beside that checkout."""


def main(arguments: list[str]) -> int:
    """Run both, print the table and write the result; fail where a test failed."""
    if arguments not in ([], ["--newest"]):
        sys.stderr.write(f"expected nothing or --newest, got {' '.join(arguments)}\n")
        return 2
    quick = _run("test-quick") if not arguments else None
    whole = _run("test") if not arguments else json.loads(SUMMARY.read_text())
    if whole["quick"]:
        sys.stderr.write("expected the newest run to be of make test, it was of make test-quick\n")
        return 2
    found = figures(whole, quick)
    for figure in found:
        goal = "" if figure.goal is None else f" (goal {figure.goal:g})"
        sys.stdout.write(f"{figure.name:26} {figure.value:8.0f} {figure.unit}{goal}\n")
    merge_result("suite", "make bench-suite", found)
    return 1 if whole["failed"] or (quick and quick["failed"]) else 0


def figures(whole: dict[str, Any], quick: dict[str, Any] | None) -> list[Figure]:
    """Give the times and counts of a run, beside those from before tests ran side by side."""
    found = [
        Figure("make_test_seconds", whole["seconds"], "s", WHOLE_GOAL_S),
        Figure("make_test_seconds_before", BEFORE["seconds"], "s"),
        Figure("tests_collected", whole["tests"], "tests"),
        Figure("tests_collected_before", BEFORE["tests"], "tests"),
        Figure("tests_skipped", whole["skipped"], "tests"),
        Figure("tests_skipped_before", BEFORE["skipped"], "tests"),
        Figure("tests_retried", whole["retried"], "tests", 0),
        Figure("tests_retried_before", BEFORE["retried"], "tests", 0),
        Figure("tests_failed", whole["failed"], "tests", 0),
    ]
    if quick is not None:
        found.append(Figure("make_test_quick_seconds", quick["seconds"], "s", QUICK_GOAL_S))
        found.append(Figure("tests_quick", quick["tests"], "tests"))
    return found


def _run(target: str) -> dict[str, Any]:
    SUMMARY.unlink(missing_ok=True)
    subprocess.run(["make", target], cwd=ROOT, check=False)
    result: dict[str, Any] = json.loads(SUMMARY.read_text())
    return result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
