"""The fake `libcuda.so.1`: a scenario, the calls that were made, and a measurement through it."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from pathlib import Path

from collectors.devices import bandwidth
from collectors.devices.bandwidth import Bandwidth
from collectors.records.basics import ReadFailure
from tests.fake_library import Scenario, built

SOURCE = Path(__file__).parent / "fakes" / "cuda" / "fake_cuda.c"
COPY_BYTES = 3 << 20


class FakeCuda(Scenario):
    def __init__(self, folder: Path) -> None:
        self.library = built(SOURCE, "libcuda.so.1")
        self.log = folder / "cuda.log"
        self.pci = folder / "pci"
        super().__init__(folder / "cuda")

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_LIBRARY_PATH": str(self.library.parent),
            "FAKE_CUDA": str(self.path),
            "FAKE_CUDA_LOG": str(self.log),
        }

    @property
    def calls(self) -> Counter[str]:
        return Counter(self.log.read_text().splitlines()) if self.log.exists() else Counter()

    def measure(self, gpu_uuid: str) -> Bandwidth | ReadFailure:
        """Measure; called in the child, so that the library stays out of the tests' process."""
        os.environ |= self.environment
        ctypes.CDLL(str(self.library), mode=ctypes.RTLD_GLOBAL)
        return bandwidth.measure(gpu_uuid, copy_bytes=COPY_BYTES, pci=self.pci)
