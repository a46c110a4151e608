"""Look locked packages up among known vulnerabilities: python -m scripts.audit_deps.

pip-audit asks the package index, which not every machine can: what could not be looked up is
counted and said, and fails nothing. A known vulnerability fails, with its id and its remedy.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PIP_AUDIT: Final = Path(".tools/audit/bin/pip-audit")
FILES: Final = ("run", "spark", "dev", "build", "notebook")
_LIMIT_S: Final = 300


@dataclass(frozen=True, slots=True)
class Audit:
    """What is known of the packages of one file.

    looked_up   packages that the database knows
    missed      packages that it was not asked, or did not know
    found       `name version: ids, mended in versions`, one a vulnerable package
    """

    looked_up: int
    missed: int
    found: tuple[str, ...]


def read(answer: Mapping[str, Any]) -> Audit:
    """Read pip-audit's answer, format `json`."""
    asked: Iterable[Mapping[str, Any]] = answer["dependencies"]
    known = [package for package in asked if "vulns" in package]
    found = [_said(package) for package in known if package["vulns"]]
    return Audit(len(known), len(answer["dependencies"]) - len(known), tuple(found))


def _said(package: Mapping[str, Any]) -> str:
    ids = ", ".join(vulnerability["id"] for vulnerability in package["vulns"])
    mended = sorted({version for v in package["vulns"] for version in v["fix_versions"]})
    return f"{package['name']} {package['version']}: {ids}; mended in {', '.join(mended) or '-'}"


def ask(file: Path) -> Audit | None:
    """Have pip-audit look a requirement file up; None where it gave no answer."""
    asked = ["--format", "json", "--disable-pip", "--require-hashes", "-r", str(file)]
    command = [str(PIP_AUDIT), *asked]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
        return read(json.loads(done.stdout))
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return None


def main() -> None:
    """Audit every requirement file; exit 1 for a known vulnerability alone."""
    failed = False
    for name in FILES:
        file = Path("requirements") / f"{name}.txt"
        audit = ask(file)
        if audit is None:
            print(f"{file}: not audited: pip-audit gave no answer")
            continue
        print(f"{file}: {audit.looked_up} packages looked up, {audit.missed} could not be")
        for line in audit.found:
            print(f"  {line}")
        failed = failed or bool(audit.found)
    sys.exit(failed)


if __name__ == "__main__":
    main()
