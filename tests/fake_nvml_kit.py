"""Builds the fake `libnvidia-ml.so.1` once, and reads through it in a child process."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from edge_agent.devices.nvml import NvmlReader

SOURCE = Path(__file__).parent / "fake_nvml" / "fake_nvml.c"


def library() -> Path:
    """Give the library, built by gcc into a cache folder that its source names."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to build the fake NVML")
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"pointillist-fake-nvml-{os.getuid()}-{digest}"
    built = folder / "libnvidia-ml.so.1"
    if not built.exists():
        folder.mkdir(exist_ok=True, mode=0o755)
        draft = folder / f"draft-{os.getpid()}"
        subprocess.run(
            ["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
             "-Wl,-soname,libnvidia-ml.so.1", "-o", draft, SOURCE],
            check=True,
        )  # fmt: skip
        draft.rename(built)
    return built


class FakeDriver:
    """One scenario; readers see a change of it at their next call."""

    def __init__(self, folder: Path) -> None:
        self.library = library()
        self._file = folder / "scenario"
        self.play()

    def play(self, *lines: str) -> None:
        """Replace the scenario."""
        draft = self._file.with_suffix(".draft")
        draft.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
        draft.rename(self._file)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs for pynvml to find the library by its name."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_NVML": str(self._file)}

    def reader(self) -> NvmlReader:
        """Make a reader; called in the child, so that the library stays out of the tests' process.

        The loader knows a loaded library by its soname: pynvml's own search then finds this one.
        """
        os.environ["FAKE_NVML"] = str(self._file)
        ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)
        return NvmlReader()
