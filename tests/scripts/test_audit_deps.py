"""The audit of dependencies: what fails it, and what it says of packages it could not look up."""

from __future__ import annotations

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


def test_audit_tells_vulnerable_from_sound_and_from_not_looked_up() -> None:
    found = audit_deps.read({"dependencies": [VULNERABLE, SOUND, MISSED]})
    assert (found.looked_up, found.missed) == (2, 1)
    assert found.found == ("aiohttp 3.0.0: PYSEC-1, GHSA-2; mended in 3.9.4",)


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ('{"dependencies": []}', 0, "0 packages looked up, 0 could not be"),
        ("no network", 0, "not audited"),
    ],
)
def test_audit_fails_for_no_want_of_a_network(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    code: int,
    said: str,
) -> None:
    def run(command: list[Any], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, answer, "")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(SystemExit) as ended:
        audit_deps.main()
    assert (bool(ended.value.code), said in capsys.readouterr().out) == (bool(code), True)


def test_audit_fails_for_a_known_vulnerability(monkeypatch: pytest.MonkeyPatch) -> None:
    audit = audit_deps.Audit(1, 0, ("aiohttp 3.0.0: PYSEC-1; mended in 3.9.4",))
    monkeypatch.setattr(audit_deps, "ask", lambda _: audit)
    with pytest.raises(SystemExit) as ended:
        audit_deps.main()
    assert ended.value.code == 1


def test_every_audited_file_is_there() -> None:
    folder = Path(audit_deps.__file__).parents[1] / "requirements"
    assert all((folder / f"{name}.txt").exists() for name in audit_deps.FILES)
