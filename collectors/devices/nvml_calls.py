"""Calls of NVML that several readers need, and how an error becomes a gap.

Imported at the start and not at the first use: by then the agent may have left root, and with it
the folder of its interpreter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml

from collectors.records.gap import Gap, GapKind

from .device_port import Measured, ProcessUse

MOST_DEVICES: Final = 64
MOST_PROCESSES: Final = 256
_UTILISATION_SPAN_US: Final = 1_000_000

_KINDS: Final = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: GapKind.UNSUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: GapKind.UNSUPPORTED,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: GapKind.UNSUPPORTED,
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: GapKind.UNSUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: GapKind.NO_PERMISSION,
    pynvml.NVML_ERROR_GPU_IS_LOST: GapKind.UNPLUGGED,
    pynvml.NVML_ERROR_RESET_REQUIRED: GapKind.UNPLUGGED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: GapKind.UNPLUGGED,
    pynvml.NVML_ERROR_NOT_FOUND: GapKind.UNPLUGGED,
    pynvml.NVML_ERROR_TIMEOUT: GapKind.TIMED_OUT,
}

_T = TypeVar("_T")
Handle = Any


def gap_of(error: pynvml.NVMLError) -> Gap:
    """Say why a call gave nothing."""
    return Gap(_KINDS.get(error.value, GapKind.FAILED), str(error))


def ask(call: Callable[[], _T]) -> _T | Gap:
    """Call NVML; what it refuses is a gap."""
    try:
        return call()
    except pynvml.NVMLError as error:
        return gap_of(error)


def device_uuid(handle: Handle) -> str:
    """Name a GPU, `GPU-<uuid>`, or an instance, `MIG-<uuid>`."""
    return str(pynvml.nvmlDeviceGetUUID(handle))


def memory_of(handle: Handle) -> tuple[int, int]:
    """Give bytes used and bytes there are, of a GPU or an instance."""
    # Version 2 leaves the driver's reserve out of what is used, as nvidia-smi does.
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return memory.used, memory.total


def processes_of(handle: Handle) -> tuple[ProcessUse, ...] | Gap:
    """List who computes on a GPU or an instance."""
    running = ask(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    if isinstance(running, Gap):
        return running
    shares = _process_shares(handle)
    uses = []
    for process in running[:MOST_PROCESSES]:
        memory = process.usedGpuMemory
        share: Measured = shares if isinstance(shares, Gap) else shares.get(process.pid, 0)
        uses.append(
            ProcessUse(
                process.pid,
                Gap(GapKind.UNSUPPORTED, "not told by process") if memory is None else memory,
                share,
                _cgroup(process.pid),
                _name(process.pid),
            )
        )
    return tuple(uses)


def _process_shares(handle: Handle) -> dict[int, int] | Gap:
    """SM percent by process in the last second; a process without a sample ran nothing in it."""
    since_us = time.time_ns() // 1_000 - _UTILISATION_SPAN_US
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError as error:
        # No process had a sample: NVML says so with one of these, or with success and none.
        nothing = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS)
        return {} if error.value in nothing else gap_of(error)
    latest = sorted(samples, key=lambda sample: int(sample.timeStamp))
    return {int(sample.pid): int(sample.smUtil) for sample in latest if sample.smUtil <= 100}


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cgroup(pid: int) -> str:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return ""
    unified = [line[3:] for line in lines if line.startswith("0::")]
    named = [line.split(":", 2)[2] for line in lines if line.count(":") >= 2 and ":cpu" in line]
    return next((path for path in (*unified, *named) if path != "/"), "/")[:512]
