"""What the parts of `make gpu-check` share: is there a GPU, the kit, exit codes, where results go.

They run with the machine's own python3 and what `make gpu-kit` packed: a GPU machine needs neither
uv nor a network. So nothing but the standard library is imported before the kit is on the path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.record import Figure, write_result

ROOT: Final = Path(__file__).resolve().parent.parent
TOOLS: Final = ROOT / ".tools" / "gpu"
KIT: Final = TOOLS / "site"
OUT: Final = "GPU_CHECK_OUT"
"""Names a folder that gets what was found."""
AS_EXPECTED, DIFFERENT, UNCHECKED, NO_GPU = 0, 1, 2, 77
DEVICES = Path("/dev")


def nvidia_gpus() -> list[Path]:
    """The nodes of this machine's NVIDIA GPUs.

    `/dev/nvidiactl` does not say so: NVIDIA's own library makes it when root calls it on a machine
    without one. A numbered node stands for a GPU that the driver found.
    """
    return sorted(DEVICES.glob("nvidia[0-9]*"))


def use_kit() -> None:
    sys.path.insert(0, str(KIT))


def ready(name: str) -> bool:
    """Use the kit; tell whether this machine has a GPU, and say it where it has none."""
    use_kit()
    if not nvidia_gpus():
        print(f"{name}: this machine has no NVIDIA GPU (no /dev/nvidia0)")
    return bool(nvidia_gpus())


def write_found(
    name: str, figures: Sequence[Figure], where: str | None, more: Mapping[str, Any]
) -> None:
    if folder := os.environ.get(OUT):
        path = write_result(name, "make gpu-check", figures, where, more, Path(folder))
        print(f"{name.replace('_', '-')}: {path}")
