"""The tree of the first compatible version, out of this repository's own history."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
_LEFT_OUT: Final = (":(exclude)docs", ":(exclude)bench", ":(exclude)cupti")
_LINE: Final = re.compile(r"^First compatible version: `([0-9a-f]{40})`", re.MULTILINE)


class NoOldTree(Exception):
    """The history does not hold the commit, and it could not be fetched either."""


class NoHistory(Exception):
    """This tree came without its history, or with a part of it, and nothing could be fetched."""


def first_compatible() -> str | None:
    """Give the commit that the changelog names, None while it names none."""
    found = _LINE.search((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    return None if found is None else found[1]


def unpack(commit: str, into: Path) -> Path:
    """Unpack a commit's tree, once; a shallow clone fetches it.

    commit      40 hex digits, or HEAD while no compatible version is named
    Raises      NoOldTree, NoHistory
    """
    exact = _git("rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()
    if not exact:
        _git("fetch", "--quiet", "--depth=1", "origin", commit)
        exact = _git("rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()
    if not exact and _git("rev-parse", "--is-shallow-repository").strip() != b"false":
        raise NoHistory(f"needs {commit} of this repository's history, which {ROOT} has not")
    if not exact:
        raise NoOldTree(
            f"upgrades are tested against the first compatible version: expected {commit} in the "
            f"history of {ROOT} or at its origin, found it in neither (git fetch --unshallow)"
        )
    folder = into / exact
    if not (folder / ".complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        # Not by tarfile: it asks for a filter from Python 3.12 on, and has none before 3.11.4.
        packed = _git("archive", exact, ".", *_LEFT_OUT)
        subprocess.run(["tar", "--extract", "--directory", folder], input=packed, check=True)
        (folder / ".complete").touch()
    return folder


def _git(*words: str) -> bytes:
    """Run git here; what it says, or nothing where it failed."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""
