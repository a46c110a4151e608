"""Programs for a GPU machine without PyTorch and CUDA toolkit; `make gpu-kit` builds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from scripts.gpu_present import TOOLS

KIT: Final = TOOLS
LAUNCHES: Final = "launches"
"""The loop of empty kernels, which launching alone bounds."""
PROGRAMS: Final[Mapping[str, str]] = {
    LAUNCHES: "driver", "cubin": "driver", "runtime": "runtime", "replay": "runtime",
}  # fmt: skip
"""By loop: empty kernels, busy ones of a cubin, through the runtime, and of a replayed graph."""


def commands() -> dict[str, list[str]]:
    """Give what runs each loop, but for its name: of the programs that are built."""
    paths = {loop: KIT / program for loop, program in PROGRAMS.items()}
    return {loop: [str(path)] for loop, path in paths.items() if path.exists()}
