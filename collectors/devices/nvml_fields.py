"""Which call of NVML answers which field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pynvml

from collectors.records.gap import GapKind

from .device_port import Field
from .nvml_calls import Handle, gap_of, memory_of

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
            if gap_of(error).kind is not GapKind.UNSUPPORTED or not states:
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
"""Fields that one call answers, and the call."""
