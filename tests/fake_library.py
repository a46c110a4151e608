"""Builds the fakes of the vendors' libraries, once for each state of their source."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pytest

MACHINE: Final = os.environ.get("POINTILLIST_TESTS_MACHINE", platform.machine())
"""For which fakes and their programs are built."""
EMULATED: Final = platform.machine() != MACHINE
RUNNER: Final = (f"qemu-{MACHINE}-static", "-L", f"/usr/{MACHINE}-linux-gnu") if EMULATED else ()
_COMPILER: Final = f"{MACHINE}-linux-gnu-gcc" if EMULATED else "gcc"


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
    for tool in (_COMPILER, *RUNNER[:1]):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}, to build and run the fake {name}")
    headers = sorted(include.rglob("*.[ch]")) if include else []
    text = b"".join(path.read_bytes() for path in (source, *headers))
    digest = hashlib.sha256(text + " ".join((_COMPILER, *options)).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"pointillist-{source.stem}-{os.getuid()}-{digest}"
    made = folder / name
    if not made.exists():
        folder.mkdir(exist_ok=True, mode=0o755)
        draft = folder / f"draft-{os.getpid()}"
        subprocess.run(
            [_COMPILER, "-O1", "-Wall", "-Wextra", "-Werror", *options,
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
