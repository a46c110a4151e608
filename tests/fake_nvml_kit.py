"""The fake `libnvidia-ml.so.1`: a scenario, and a reader through it in a child process."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from edge_agent.devices.nvml import NvmlReader
from tests.fake_library import Scenario, built

SOURCE = Path(__file__).parent / "fake_nvml" / "fake_nvml.c"


class FakeDriver(Scenario):
    """One scenario; readers see a change of it at their next call."""

    def __init__(self, folder: Path) -> None:
        self.library = built(SOURCE, "libnvidia-ml.so.1")
        super().__init__(folder / "scenario")

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs for pynvml to find the library by its name."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_NVML": str(self.path)}

    def reader(self) -> NvmlReader:
        """Make a reader; called in the child, so that the library stays out of the tests' process.

        The loader knows a loaded library by its soname: pynvml's own search then finds this one.
        """
        os.environ["FAKE_NVML"] = str(self.path)
        ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)
        return NvmlReader()
