"""The fake `libnvidia-ml.so.1`: a scenario, a reader through it in a child process, a clock."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from collectors.devices.nvml import NvmlReader
from tests.fake_library import Scenario, built

SOURCE = Path(__file__).parent / "fakes" / "nvml" / "fake_nvml.c"


class Clock:
    def __init__(self) -> None:
        self.now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def __call__(self) -> int:
        return self.now_ns


class FakeDriver(Scenario):
    """One scenario; readers see a change of it at their next call."""

    def __init__(self, folder: Path) -> None:
        self.library = built(SOURCE, "libnvidia-ml.so.1")
        super().__init__(folder / "scenario")

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_NVML": str(self.path)}

    def reader(self) -> NvmlReader:
        """Make a reader; called in the child, so that the library stays out of the tests' process.

        The loader knows a loaded library by its soname: pynvml's own search then finds this one.
        """
        os.environ["FAKE_NVML"] = str(self.path)
        ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)
        return NvmlReader()
