"""A GPU's fields under the names and in the units of DCGM, for those that are the same number.

Left out: DCGM's fields of NVLink (rates and single errors; ours are payload since the driver was
loaded and one sum of errors) and free memory (the driver reserves a part that is not asked for).
Source  NVIDIA, DCGM's list of fields and dcgm-exporter's default counters
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from collectors.devices.device_port import DeviceReading, Field

_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class DcgmField:
    """DCGM's field; `per_unit` of ours make one of its units.

    counts   it only grows, until the driver is loaded anew
    whole    DCGM gives whole units, rounded down
    """

    name: str
    text: str
    per_unit: int = 1
    counts: bool = False
    whole: bool = True

    def value(self, measured: int) -> int | float:
        """Give a value of ours in its unit."""
        return measured // self.per_unit if self.whole else measured / self.per_unit


def _counter(name: str, text: str) -> DcgmField:
    return DcgmField(name, text, counts=True)


NAMES: Final[Mapping[Field, DcgmField]] = {
    Field.UTILISATION: DcgmField("DCGM_FI_DEV_GPU_UTIL", "time with a kernel, %"),
    Field.MEMORY_BUSY: DcgmField("DCGM_FI_DEV_MEM_COPY_UTIL", "time with memory traffic, %"),
    Field.MEMORY_USED: DcgmField("DCGM_FI_DEV_FB_USED", "memory in use, MiB", _MIB),
    Field.MEMORY_TOTAL: DcgmField("DCGM_FI_DEV_FB_TOTAL", "memory, MiB", _MIB),
    Field.SM_CLOCK: DcgmField("DCGM_FI_DEV_SM_CLOCK", "clock of the SMs, MHz"),
    Field.SM_CLOCK_MAX: DcgmField("DCGM_FI_DEV_MAX_SM_CLOCK", "highest clock of the SMs, MHz"),
    Field.MEMORY_CLOCK: DcgmField("DCGM_FI_DEV_MEM_CLOCK", "clock of the memory, MHz"),
    Field.POWER: DcgmField("DCGM_FI_DEV_POWER_USAGE", "power, W", 1_000, whole=False),
    Field.POWER_LIMIT: DcgmField(
        "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "power that the driver allows, W", 1_000, whole=False
    ),
    Field.TEMPERATURE: DcgmField("DCGM_FI_DEV_GPU_TEMP", "temperature, C"),
    Field.FAN: DcgmField("DCGM_FI_DEV_FAN_SPEED", "speed of the fan, %"),
    Field.THROTTLE: DcgmField("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "why clocks are held, bits"),
    Field.PCIE_TX: DcgmField("DCGM_FI_PROF_PCIE_TX_BYTES", "sent over PCIe, bytes a second"),
    Field.PCIE_RX: DcgmField("DCGM_FI_PROF_PCIE_RX_BYTES", "received over PCIe, bytes a second"),
    Field.PCIE_GENERATION: DcgmField("DCGM_FI_DEV_PCIE_LINK_GEN", "generation of the PCIe link"),
    Field.PCIE_WIDTH: DcgmField("DCGM_FI_DEV_PCIE_LINK_WIDTH", "lanes of the PCIe link"),
    Field.PCIE_GENERATION_MAX: DcgmField(
        "DCGM_FI_DEV_PCIE_MAX_LINK_GEN", "highest generation of the PCIe link"
    ),
    Field.PCIE_WIDTH_MAX: DcgmField("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", "most lanes of the link"),
    Field.PCIE_REPLAYS: _counter("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "replays on the PCIe link"),
    Field.ECC_VOLATILE_CORRECTED: _counter(
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "corrected errors since the driver was loaded"
    ),
    Field.ECC_VOLATILE_UNCORRECTED: _counter(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "uncorrected errors since the driver was loaded"
    ),
    Field.ECC_AGGREGATE_CORRECTED: _counter(
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "corrected errors of the GPU's life"
    ),
    Field.ECC_AGGREGATE_UNCORRECTED: _counter(
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "uncorrected errors of the GPU's life"
    ),
    Field.ROWS_CORRECTED: _counter(
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "rows remapped after corrected errors"
    ),
    Field.ROWS_UNCORRECTED: _counter(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "rows remapped after uncorrected errors"
    ),
    Field.ROWS_PENDING: DcgmField("DCGM_FI_DEV_ROW_REMAP_PENDING", "1 while a remap waits"),
    Field.ROWS_FAILED: DcgmField("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1 where a remap failed"),
    Field.XID_LAST: DcgmField("DCGM_FI_DEV_XID_ERRORS", "last XID since the agent looks, 0: none"),
    Field.MIG: DcgmField("DCGM_FI_DEV_MIG_MODE", "1 where MIG is on"),
}


def device_labels(reading: DeviceReading) -> dict[str, str]:
    """Give dcgm-exporter's labels of a device."""
    return {
        "gpu": str(reading.index),
        "UUID": reading.id,
        "device": f"nvidia{reading.index}",
        "modelName": reading.model,
    }
