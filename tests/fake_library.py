"""Builds the fakes of the vendors' libraries, once for each state of their source."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def built(
    source: Path, soname: str, include: Path | None = None, options: tuple[str, ...] = ()
) -> Path:
    """Give the library, built by gcc into a cache folder that its source names.

    include  a folder, the headers in whose include/ it may use
    options  further ones of the compiler
    """
    shared = ("-shared", "-fPIC", f"-Wl,-soname,{soname}")
    return _compiled(source, soname, (*shared, *options), include)


def built_program(source: Path, include: Path | None = None, options: tuple[str, ...] = ()) -> Path:
    return _compiled(source, source.stem, options, include)


def _compiled(source: Path, name: str, options: tuple[str, ...], include: Path | None) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip(f"needs gcc, to build the fake {name}")
    headers = sorted(include.rglob("*.[ch]")) if include else []
    text = b"".join(path.read_bytes() for path in (source, *headers))
    digest = hashlib.sha256(text + " ".join(options).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"pointillist-{source.stem}-{os.getuid()}-{digest}"
    made = folder / name
    if not made.exists():
        folder.mkdir(exist_ok=True, mode=0o755)
        draft = folder / f"draft-{os.getpid()}"
        subprocess.run(
            ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", *options,
             *([f"-I{include}"] if include else []), "-o", draft, source, "-pthread", "-ldl"],
            check=True,
        )  # fmt: skip
        draft.rename(made)
    return made


class Scenario:
    """A file that a fake library reads anew at each call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.play()

    def play(self, *lines: str) -> None:
        draft = self.path.with_suffix(".draft")
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        draft.rename(self.path)
