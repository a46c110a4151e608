"""Which call of NVML answers which field, and how an error becomes a gap.

Imported at the start: at the first use the agent may have left root, and its interpreter's folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import pynvml

from collectors.records.basics import FailureKind, ReadFailure

from .device_port import Field, Measured, ProcessUse

MOST_DEVICES: Final = 64
MOST_PROCESSES: Final = 256
_UTILISATION_SPAN_US: Final = 1_000_000

_KINDS: Final = {
    pynvml.NVML_ERROR_NOT_SUPPORTED: FailureKind.UNSUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: FailureKind.UNSUPPORTED,
    pynvml.NVML_ERROR_INVALID_ARGUMENT: FailureKind.UNSUPPORTED,
    pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED: FailureKind.UNSUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION: FailureKind.NO_PERMISSION,
    pynvml.NVML_ERROR_GPU_IS_LOST: FailureKind.UNPLUGGED,
    pynvml.NVML_ERROR_RESET_REQUIRED: FailureKind.UNPLUGGED,
    pynvml.NVML_ERROR_GPU_NOT_FOUND: FailureKind.UNPLUGGED,
    pynvml.NVML_ERROR_NOT_FOUND: FailureKind.UNSUPPORTED,
    pynvml.NVML_ERROR_TIMEOUT: FailureKind.TIMED_OUT,
}

_T = TypeVar("_T")
Handle = Any


def failure_of(error: pynvml.NVMLError) -> ReadFailure:
    return ReadFailure(_KINDS.get(error.value, FailureKind.FAILED), str(error))


def ask(call: Callable[[], _T]) -> _T | ReadFailure:
    try:
        return call()
    except pynvml.NVMLError as error:
        return failure_of(error)


def device_uuid(handle: Handle) -> str:
    """Name a GPU, `GPU-<uuid>`, or an instance, `MIG-<uuid>`."""
    return str(pynvml.nvmlDeviceGetUUID(handle))


_UNTOLD: Final = ReadFailure(FailureKind.UNSUPPORTED, "not told by process")


def memory_of(handle: Handle) -> tuple[int, int]:
    # Version 2 leaves the driver's reserve out of what is used, as nvidia-smi does.
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return memory.used, memory.total


def processes_of(handle: Handle) -> tuple[ProcessUse, ...] | ReadFailure:
    running = ask(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    if isinstance(running, ReadFailure):
        return running
    shares = _process_shares(handle)
    uses = []
    for process in running[:MOST_PROCESSES]:
        memory = process.usedGpuMemory
        share: Measured = shares if isinstance(shares, ReadFailure) else shares.get(process.pid, 0)
        uses.append(
            ProcessUse(
                process.pid,
                _UNTOLD if memory is None else memory,
                share,
                _cgroup(process.pid),
                _name(process.pid),
            )
        )
    return tuple(uses)


def _process_shares(handle: Handle) -> dict[int, int] | ReadFailure:
    """SM percent by process in the last second; a process without a sample ran nothing in it."""
    since_us = time.time_ns() // 1_000 - _UTILISATION_SPAN_US
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError as error:
        # No process had a sample: NVML says so with one of these, or with success and none.
        nothing = (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_SUCCESS)
        return {} if error.value in nothing else failure_of(error)
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


_BYTES_PER_KIB: Final = 1_024
_ALL_LINKS: Final = 0xFFFF_FFFF


def _utilisation(handle: Handle) -> tuple[int, int]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu, rates.memory


def _nvlinks(handle: Handle) -> tuple[int, int]:
    states = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(pynvml.nvmlDeviceGetNvLinkState(handle, link))
        except pynvml.NVMLError as error:
            # Past the last link of this model: NVML has no call for how many there are.
            if failure_of(error).kind is not FailureKind.UNSUPPORTED or not states:
                raise
            break
    return sum(states), len(states) - sum(states)


def _nvlink_errors(handle: Handle) -> tuple[int]:
    up, down = _nvlinks(handle)
    counters = (
        pynvml.NVML_NVLINK_ERROR_DL_REPLAY,
        pynvml.NVML_NVLINK_ERROR_DL_RECOVERY,
        pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT,
    )
    links = [link for link in range(up + down) if pynvml.nvmlDeviceGetNvLinkState(handle, link)]
    return (
        sum(
            pynvml.nvmlDeviceGetNvLinkErrorCounter(handle, link, counter)
            for link in links
            for counter in counters
        ),
    )


def _nvlink_bytes(name: int) -> Callable[[Handle], tuple[int]]:
    """Payload over all links: the scope names one link, or all of them."""

    def read(handle: Handle) -> tuple[int]:
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [(name, _ALL_LINKS)])
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(value.nvmlReturn)
        return (int(value.value.ullVal) * _BYTES_PER_KIB,)

    return read


def _ecc(kind: int, counter: int) -> Callable[[Handle], tuple[int]]:
    return lambda handle: (pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter),)


def _one(name: str, *arguments: int) -> Callable[[Handle], tuple[int]]:
    return lambda handle: (getattr(pynvml, name)(handle, *arguments),)


_CORRECTED, _UNCORRECTED = (
    pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
    pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
)
_VOLATILE, _AGGREGATE = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC

GROUPS: Final[tuple[tuple[tuple[Field, ...], Callable[[Handle], tuple[int, ...]]], ...]] = (
    ((Field.UTILISATION, Field.MEMORY_BUSY), _utilisation),
    ((Field.MEMORY_USED, Field.MEMORY_TOTAL), memory_of),
    ((Field.SM_CLOCK,), _one("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM)),
    ((Field.SM_CLOCK_MAX,), _one("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM)),
    ((Field.MEMORY_CLOCK,), _one("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM)),
    ((Field.POWER,), _one("nvmlDeviceGetPowerUsage")),
    ((Field.POWER_LIMIT,), _one("nvmlDeviceGetEnforcedPowerLimit")),
    ((Field.TEMPERATURE,), _one("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)),
    ((Field.FAN,), _one("nvmlDeviceGetFanSpeed")),
    ((Field.PCIE_WIDTH,), _one("nvmlDeviceGetCurrPcieLinkWidth")),
    ((Field.PCIE_WIDTH_MAX,), _one("nvmlDeviceGetMaxPcieLinkWidth")),
    ((Field.PCIE_GENERATION,), _one("nvmlDeviceGetCurrPcieLinkGeneration")),
    ((Field.PCIE_GENERATION_MAX,), _one("nvmlDeviceGetMaxPcieLinkGeneration")),
    ((Field.PCIE_REPLAYS,), _one("nvmlDeviceGetPcieReplayCounter")),
    ((Field.THROTTLE,), _one("nvmlDeviceGetCurrentClocksThrottleReasons")),
    ((Field.ECC_VOLATILE_CORRECTED,), _ecc(_CORRECTED, _VOLATILE)),
    ((Field.ECC_VOLATILE_UNCORRECTED,), _ecc(_UNCORRECTED, _VOLATILE)),
    ((Field.ECC_AGGREGATE_CORRECTED,), _ecc(_CORRECTED, _AGGREGATE)),
    ((Field.ECC_AGGREGATE_UNCORRECTED,), _ecc(_UNCORRECTED, _AGGREGATE)),
    (
        (Field.ROWS_CORRECTED, Field.ROWS_UNCORRECTED, Field.ROWS_PENDING, Field.ROWS_FAILED),
        lambda handle: tuple(pynvml.nvmlDeviceGetRemappedRows(handle)),
    ),
    ((Field.NVLINKS_UP, Field.NVLINKS_DOWN), _nvlinks),
    ((Field.NVLINK_ERRORS,), _nvlink_errors),
    ((Field.NVLINK_TX,), _nvlink_bytes(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)),
    ((Field.NVLINK_RX,), _nvlink_bytes(pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX)),
    ((Field.MIG,), lambda handle: (pynvml.nvmlDeviceGetMigMode(handle)[0],)),
)
