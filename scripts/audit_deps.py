"""Look locked packages up among known vulnerabilities: python -m scripts.audit_deps.

pip-audit asks the package index, which not every machine can: what could not be looked up is
counted and said, and fails nothing. A known vulnerability fails, with its id and its remedy.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

PIP_AUDIT: Final = Path(".tools/audit/bin/pip-audit")
FILES: Final = ("run", "spark", "dev", "build", "notebook")
_LIMIT_S: Final = 300


def ask(file: Path) -> list[dict[str, Any]] | None:
    """Have pip-audit look a requirement file up; None where it gave no answer."""
    asked = ["--format", "json", "--disable-pip", "--require-hashes", "-r", str(file)]
    try:
        done = subprocess.run(
            [PIP_AUDIT, *asked], capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
        packages: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (subprocess.TimeoutExpired, ValueError, KeyError):
        return None
    return packages


def main() -> int:
    """Audit every requirement file; 1 for a known vulnerability alone."""
    failed = False
    for name in FILES:
        file = Path("requirements") / f"{name}.txt"
        packages = ask(file)
        if packages is None:
            print(f"{file}: not audited: pip-audit gave no answer")
            continue
        known = [package for package in packages if "vulns" in package]
        missed = len(packages) - len(known)
        print(f"{file}: {len(known)} packages looked up, {missed} could not be")
        for package in known:
            for one in package["vulns"]:
                mended = ", ".join(one["fix_versions"]) or "-"
                print(f"  {package['name']} {package['version']}: {one['id']}; mended in {mended}")
                failed = True
    return failed


if __name__ == "__main__":
    sys.exit(main())
