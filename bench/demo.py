"""Play the demo once and record its figures: make bench-demo. What it takes of a terminal."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.parts import Measured, Parts
from bench.record import ROOT, Figure
from tests.terminal_kit import Terminal

PICTURE: Final = ROOT / "docs" / "images" / "demo.png"
FIGURES: Final[dict[str, tuple[str, float]]] = {
    "window_end_to_release_p90_s": ("s", 8.0),
    "interval_coverage_percent": ("percent", 95.0),
    "standard_error_percent_window": ("percent", 1.57),
}
"""Of the demo's summary: unit and goal of each."""
COLUMNS: Final = 80
ROWS: Final = 24
END_LINES: Final = 30
LONGEST_S: Final = 600.0
LAST_WORDS: Final = "this host in a browser, until Ctrl-C"
"""What a demo on a terminal says last, and then waits."""


def measure(_kept: Parts) -> Measured:
    """Play the demo as JSON; keep the README's picture."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pointillist", "demo", "--json", "--out", folder]
        print("playing the demo, about two and a half minutes", flush=True)
        done = subprocess.run(command, stdout=subprocess.PIPE, cwd=ROOT, check=True)
        summary: dict[str, Any] = json.loads(done.stdout)
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(Path(summary["files"]["chart"]), PICTURE)
    return Measured([Figure(name, summary[name], *of) for name, of in FIGURES.items()])


def demo_at_80x24(*options: str) -> list[Figure]:
    """Play the demo in a pseudo-terminal until its pages are all that is left.

    options     of `pointillist demo`; without any, a run as `make demo` begins it
    Raises      AssertionError with what was shown, where it does not come to its end
    """
    with tempfile.TemporaryDirectory() as folder:
        command = in_folder(Path(folder), [sys.executable, "-m", "pointillist", "demo", *options])
        with Terminal(COLUMNS, ROWS, command, errors=True, patience_s=LONGEST_S) as terminal:
            terminal.until(lambda text: LAST_WORDS in text, lambda: None)
            shown = terminal.text
            terminal.press(b"\x03")
            terminal.ended()
    return [
        Figure("demo_rows", max(map(len, panels(shown))), "rows", ROWS),
        Figure("demo_end_lines", len(end_lines(shown)), "lines", END_LINES),
    ]


def in_folder(folder: Path, command: Sequence[str]) -> list[str]:
    """Give the command that runs another in a folder, where its results are then named shortly."""
    return ["sh", "-c", 'cd "$0" && exec "$@"', str(folder), *command]


def panels(shown: str) -> list[list[str]]:
    """Give the rows of each picture of the live panel, and of what stands below it.

    shown   everything that the demo wrote, without moves of the cursor
    Returns more rows than the terminal has for a picture that was cut
    """
    pictures = [drawn.partition("\n─")[0] for drawn in shown.split("╭")[1:]]
    too_many = [""] * (ROWS + 1)
    return [drawn.strip().split("\n") if "╯" in drawn else too_many for drawn in pictures]


def end_lines(shown: str) -> list[str]:
    """Give the rows of the terminal that the end takes, from its heading on."""
    heading, *rest = shown.rpartition("╯")[2].partition("\n─")[2].strip().split("\n")
    lines = [f"─{heading}", *rest]
    return [row for line in lines for row in re.findall(f".{{1,{COLUMNS}}}", line) or [""]]
