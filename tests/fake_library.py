"""Builds the fakes of the vendors' libraries, once for each state of their source."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def built(source: Path, soname: str) -> Path:
    """Give the library, built by gcc into a cache folder that its source names."""
    if shutil.which("gcc") is None:
        pytest.skip(f"needs gcc, to build the fake {soname}")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"pointillist-{source.stem}-{os.getuid()}-{digest}"
    library = folder / soname
    if not library.exists():
        folder.mkdir(exist_ok=True, mode=0o755)
        draft = folder / f"draft-{os.getpid()}"
        subprocess.run(
            ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
             f"-Wl,-soname,{soname}", "-o", draft, source],
            check=True,
        )  # fmt: skip
        draft.rename(library)
    return library


class Scenario:
    """A file that a fake library reads anew at each call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.play()

    def play(self, *lines: str) -> None:
        """Replace the scenario."""
        draft = self.path.with_suffix(".draft")
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        draft.rename(self.path)
