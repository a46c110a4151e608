"""Compare what the device port reads on a real GPU with nvidia-smi, within its resolution.

Runs with the system's python3 and the standard library alone: `pynvml` comes from the machine or
from .tools/gpu, as `make gpu-kit` leaves it there or as a wheel (a zip that Python imports from): a
GPU machine needs neither uv nor a network. Exit code 0 also without a GPU; one line says so.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
KIT: Final = ROOT / ".tools" / "gpu"
DEVICE = Path("/dev/nvidiactl")

# Field of the port, nvidia-smi's name, units per unit of nvidia-smi, tolerance in units of it.
COMPARED: Final[tuple[tuple[str, str, int, float], ...]] = (
    ("memory_total_bytes", "memory.total", 1 << 20, 1.0),
    ("memory_used_bytes", "memory.used", 1 << 20, 64.0),
    ("power_mw", "power.draw", 1_000, 60.0),
    ("power_limit_mw", "power.limit", 1_000, 0.01),
    ("temperature_celsius", "temperature.gpu", 1, 3.0),
    ("sm_clock_max_mhz", "clocks.max.sm", 1, 0.0),
    ("pcie_width", "pcie.link.width.current", 1, 0.0),
    ("ecc_volatile_corrected", "ecc.errors.corrected.volatile.total", 1, 0.0),
    ("ecc_volatile_uncorrected", "ecc.errors.uncorrected.volatile.total", 1, 0.0),
)


def main() -> int:
    """Compare, and print one line per difference."""
    if shutil.which("nvidia-smi") is None or not DEVICE.exists():
        print(
            "gpu-check: skipped, this machine has no NVIDIA GPU (no nvidia-smi or /dev/nvidiactl)"
        )
        return 0
    sys.path[:0] = [str(ROOT), str(KIT), *(str(wheel) for wheel in KIT.glob("nvidia_ml_py*.whl"))]
    try:
        from edge_agent.devices.bounded import BoundedReader
        from edge_agent.devices.nvml import NvmlReader
        from edge_agent.devices.port import ALL
    except ModuleNotFoundError as error:
        print(f"gpu-check: expected {error.name}: `make gpu-kit` puts it into {KIT}")
        return 1
    reader = BoundedReader(NvmlReader, deadline_s=20)
    inventory = reader.open()
    print(f"gpu-check: {inventory.devices} GPUs, driver {inventory.driver}")
    wrong = 0
    for index in range(inventory.devices):
        begun_s = time.monotonic()
        reading = reader.read(index, ALL, processes=True)
        took_ms = 1_000 * (time.monotonic() - begun_s)
        peer = _nvidia_smi(index)
        if reading.id != peer["uuid"]:
            print(f"GPU {index}: id {reading.id}, nvidia-smi has {peer['uuid']}")
            wrong += 1
        values = {str(name): value for name, value in reading.values.items()}
        for name, smi_name, scale, tolerance in COMPARED:
            wrong += _differs(index, name, values.get(name), peer[smi_name], scale, tolerance)
        gaps = ", ".join(f"{name}: {gap.kind}" for name, gap in sorted(reading.gaps.items()))
        print(f"GPU {index}: {len(values)} fields in {took_ms:.0f} ms; gaps: {gaps or 'none'}")
    reader.close()
    print("gpu-check: " + (f"{wrong} differences" if wrong else "as nvidia-smi has it"))
    return 1 if wrong else 0


def _nvidia_smi(index: int) -> dict[str, str]:
    names = ["uuid", *(name for _, name, _, _ in COMPARED)]
    query = f"--query-gpu={','.join(names)}"
    asked = ["nvidia-smi", f"--id={index}", query, "--format=csv,noheader,nounits"]
    answer = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout
    return dict(zip(names, (one.strip() for one in answer.strip().split(",")), strict=True))


def _differs(
    index: int, name: str, ours: int | None, theirs: str, scale: int, tolerance: float
) -> bool:
    try:
        expected = float(theirs)
    except ValueError:  # nvidia-smi's words for what a GPU does not have
        if ours is not None:
            print(f"GPU {index}: {name} is {ours}, nvidia-smi has {theirs}")
        return ours is not None
    if ours is not None and abs(ours / scale - expected) <= tolerance:
        return False
    print(f"GPU {index}: {name} is {ours}, nvidia-smi has {theirs} x {scale}")
    return True


if __name__ == "__main__":
    sys.exit(main())
