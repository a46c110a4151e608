"""Play the demo once and record its figures; `make bench-demo`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.record import ROOT, Figure, write_result

PICTURE: Final = ROOT / "docs" / "images" / "demo.png"


def main() -> None:
    """Play, print a table, write bench/results/demo.json and the README's picture."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pointillist", "demo", "--json", "--out", folder]
        sys.stderr.write("playing the demo, about two and a half minutes\n")
        done = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, check=True)
        summary: dict[str, Any] = json.loads(done.stdout)
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(summary["files"]["chart"]), PICTURE)
    recorded = figures(summary)
    for one in recorded:
        goal = "" if one.goal is None else f"goal {one.goal:g}"
        sys.stdout.write(f"{one.name:36} {one.value:10.2f} {one.unit:10} {goal}\n")
    write_result("demo", "make bench-demo", recorded)


def figures(summary: dict[str, Any]) -> list[Figure]:
    """Give the figures of a summary."""
    return [
        Figure("window_end_to_release_p90_s", summary["window_end_to_release_p90_s"], "s", 8.0),
        Figure("window_end_to_release_p50_s", summary["window_end_to_release_p50_s"], "s"),
        Figure("interval_coverage_percent", summary["interval_coverage_percent"], "percent", 95.0),
        Figure("cells_checked", summary["cells_checked"], "intervals"),
        Figure("hosts", summary["hosts"], "hosts"),
        Figure("gpus", summary["gpus"], "GPUs"),
        Figure("windows_released", summary["windows_released"], "windows"),
        Figure(
            "standard_error_percent_window",
            summary["standard_error_percent_window"],
            "percent",
            1.57,
        ),
        Figure("rows_told_from_zero", summary["rows_told_from_zero"], "rows"),
        Figure("rows_told_truly_empty", summary["rows_told_truly_empty"], "rows"),
    ]


if __name__ == "__main__":
    main()
