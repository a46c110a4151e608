"""The page of a first fleet, typed as it stands: every command of its blocks, in order."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.fleet_kit import fleet_folder

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "first-fleet.md").read_text(encoding="utf-8")
LONGEST_S = 600


def typed(page: str) -> str:
    """Give what a reader types: the page's blocks of commands, one after the other."""
    return "\n".join(re.findall(r"^```bash\n(.*?)^```", page, re.MULTILINE | re.DOTALL))


def test_page_has_the_two_commands_and_what_is_looked_at_afterwards() -> None:
    commands = [line for line in typed(PAGE).splitlines() if line.startswith("pointillist")]
    assert [line.split()[1:3] for line in commands[:2]] == [["fleet", "init"], ["fleet", "up"]]
    assert len(commands) >= 8


@pytest.mark.release
@pytest.mark.timeout(LONGEST_S)
def test_every_command_of_the_page_works_as_it_stands() -> None:
    with fleet_folder() as base:
        script = typed(PAGE).replace("/srv/trial", str(base / "trial"))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            capture_output=True, text=True, check=False, cwd=ROOT, env=dict(os.environ),
            timeout=LONGEST_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Released after" in done.stdout
        assert not (base / "trial").exists()
