"""A file system of few bytes, and what fills it: real ENOSPC."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str = "4m") -> Iterator[Path]:
    """A file system of so many bytes; root's to make."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> Path:
    path = folder / "ballast"
    with path.open("wb", buffering=0) as file:
        for block in (1 << 16, 1 << 12, 1):
            with pytest.raises(OSError, match="No space"):  # noqa: PT012  (until it is full)
                while True:
                    file.write(b"\0" * block)
    return path
