"""Whether this machine has an NVIDIA GPU.

`/dev/nvidiactl` does not say so: NVIDIA's own library makes it when root calls it on a machine
without one. A numbered node stands for a GPU that the driver found.
"""

from __future__ import annotations

from pathlib import Path

DEVICES = Path("/dev")


def nvidia_gpus() -> list[Path]:
    """The nodes of this machine's NVIDIA GPUs."""
    return sorted(DEVICES.glob("nvidia[0-9]*"))
