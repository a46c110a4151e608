"""Play the demo once and record its figures: make bench-demo."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.parts import Measured, Parts
from bench.record import ROOT, Figure

PICTURE: Final = ROOT / "docs" / "images" / "demo.png"
FIGURES: Final[dict[str, tuple[str, float]]] = {
    "window_end_to_release_p90_s": ("s", 8.0),
    "interval_coverage_percent": ("percent", 95.0),
    "standard_error_percent_window": ("percent", 1.57),
}
"""Of the demo's summary: unit and goal of each."""


def measure(kept: Parts) -> Measured:
    """Play the demo as JSON; keep the README's picture."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pointillist", "demo", "--json", "--out", folder]
        print("playing the demo, about two and a half minutes", flush=True)
        done = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, check=True)
        summary: dict[str, Any] = json.loads(done.stdout)
        if kept.writes:
            shutil.copy(Path(summary["files"]["chart"]), PICTURE)
    return Measured([Figure(name, summary[name], *of) for name, of in FIGURES.items()])
