"""The audit of dependencies: what fails it, and what it says of packages it could not look up."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts import audit_deps

VULNERABLE = {
    "name": "aiohttp", "version": "3.0.0",
    "vulns": [{"id": "PYSEC-1", "fix_versions": ["3.9.4"]}, {"id": "GHSA-2", "fix_versions": []}],
}  # fmt: skip
SOUND = {"name": "numpy", "version": "2.1.0", "vulns": []}
MISSED = {"name": "duckdb", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([VULNERABLE, SOUND, MISSED], 1, "2 packages looked up, 1 could not be"),
        ([VULNERABLE], 1, "aiohttp 3.0.0: PYSEC-1; mended in 3.9.4\n  aiohttp 3.0.0: GHSA-2"),
        ([SOUND, MISSED], 0, "1 packages looked up, 1 could not be"),
        (None, 0, "not audited"),
    ],
)
def test_audit_fails_for_a_known_vulnerability_alone(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    packages: list[Any] | None,
    code: int,
    said: str,
) -> None:
    answer = "no network" if packages is None else json.dumps({"dependencies": packages})

    def run(command: list[Any], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, answer, "")

    monkeypatch.setattr(subprocess, "run", run)
    assert audit_deps.main() == code
    assert said in capsys.readouterr().out
    folder = Path(audit_deps.__file__).parents[1] / "requirements"
    assert all((folder / f"{name}.txt").exists() for name in audit_deps.FILES)
