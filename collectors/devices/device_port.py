"""The vendor-neutral device interface: each field is a value read now, or a gap that says why."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from collectors.records.basics import FailureKind, ReadFailure


class DevicesUnavailable(Exception):
    """No device of this kind can be read here: one line says what was expected and what came."""


class Field(StrEnum):
    """What a device may tell; a unit ends the name, what has none is a count or a state."""

    UTILISATION = "utilisation_percent"
    MEMORY_BUSY = "memory_busy_percent"
    MEMORY_USED = "memory_used_bytes"
    MEMORY_TOTAL = "memory_total_bytes"
    SM_CLOCK = "sm_clock_mhz"
    SM_CLOCK_MAX = "sm_clock_max_mhz"
    MEMORY_CLOCK = "memory_clock_mhz"
    POWER = "power_mw"
    POWER_LIMIT = "power_limit_mw"
    TEMPERATURE = "temperature_celsius"
    FAN = "fan_percent"
    PCIE_TX = "pcie_tx_bytes_per_s"
    PCIE_RX = "pcie_rx_bytes_per_s"
    PCIE_WIDTH = "pcie_width"
    PCIE_WIDTH_MAX = "pcie_width_max"
    PCIE_GENERATION = "pcie_generation"
    PCIE_GENERATION_MAX = "pcie_generation_max"
    PCIE_REPLAYS = "pcie_replays"
    THROTTLE = "throttle_reasons"
    ECC_VOLATILE_CORRECTED = "ecc_volatile_corrected"
    ECC_VOLATILE_UNCORRECTED = "ecc_volatile_uncorrected"
    ECC_AGGREGATE_CORRECTED = "ecc_aggregate_corrected"
    ECC_AGGREGATE_UNCORRECTED = "ecc_aggregate_uncorrected"
    ROWS_CORRECTED = "rows_remapped_corrected"
    ROWS_UNCORRECTED = "rows_remapped_uncorrected"
    ROWS_PENDING = "row_remap_pending"
    ROWS_FAILED = "row_remap_failed"
    NVLINKS_UP = "nvlinks_up"
    NVLINKS_DOWN = "nvlinks_down"
    NVLINK_ERRORS = "nvlink_errors"
    NVLINK_TX = "nvlink_tx_bytes"
    """Payload sent over all links since the driver was loaded."""
    NVLINK_RX = "nvlink_rx_bytes"
    XID_EVENTS = "xid_events"
    XID_LAST = "xid_last"
    MIG = "mig_enabled"


SLOW: Final = frozenset({Field.PCIE_TX, Field.PCIE_RX})
"""Where the GPU keeps no count itself, NVML watches the link for 20 ms to answer one of these: the
GPUs take turns."""

ALL: Final = frozenset(Field)
REGULAR: Final = ALL - SLOW

QUICK: Final = frozenset({
    Field.UTILISATION, Field.MEMORY_BUSY, Field.MEMORY_USED, Field.MEMORY_TOTAL, Field.POWER,
    Field.TEMPERATURE, Field.SM_CLOCK, Field.MEMORY_CLOCK, Field.THROTTLE, Field.XID_EVENTS,
    Field.XID_LAST,
})  # fmt: skip
"""What changes from second to second; NVLink alone is a hundred calls of the driver per GPU."""

EVENTS: Final = frozenset({Field.XID_EVENTS, Field.XID_LAST})
"""What the driver tells, also of a device that is gone."""

NVIDIA: Final = "NVIDIA"
AMD: Final = "AMD"

Measured = int | ReadFailure
NOT_ASKED: Final = ReadFailure(FailureKind.UNSUPPORTED, "not asked")


_COUNT: Final = (0, (1 << 62) - 1)
_PERCENT: Final = (0, 100)
_BYTES: Final = (0, 1 << 45)
_LINKS: Final = (0, 128)
_POWER: Final = (0, 5_000_000)
_RATE: Final = (0, 1 << 42)
_FLAG: Final = (0, 1)
BOUNDS: Final[dict[Field, tuple[int, int]]] = {
    **dict.fromkeys(Field, _COUNT),
    Field.UTILISATION: _PERCENT,
    Field.MEMORY_BUSY: _PERCENT,
    Field.MEMORY_USED: _BYTES,
    Field.MEMORY_TOTAL: _BYTES,
    Field.SM_CLOCK: (0, 10_000),
    Field.SM_CLOCK_MAX: (0, 10_000),
    Field.MEMORY_CLOCK: (0, 50_000),
    Field.POWER: _POWER,
    Field.POWER_LIMIT: _POWER,
    Field.TEMPERATURE: (-60, 150),
    Field.FAN: (0, 200),
    Field.PCIE_TX: _RATE,
    Field.PCIE_RX: _RATE,
    Field.PCIE_WIDTH: (0, 32),
    Field.PCIE_WIDTH_MAX: (0, 32),
    Field.PCIE_GENERATION: (0, 9),
    Field.PCIE_GENERATION_MAX: (0, 9),
    Field.ROWS_PENDING: _FLAG,
    Field.ROWS_FAILED: _FLAG,
    Field.NVLINKS_UP: _LINKS,
    Field.NVLINKS_DOWN: _LINKS,
    Field.XID_LAST: (0, 9_999),
    Field.MIG: _FLAG,
}
"""What a device can have at all, both ends included: no board of today is near one of them."""


def plausible(fields: Mapping[Field, Measured]) -> dict[Field, Measured]:
    """Make gaps of values that no device can have."""
    return {name: _bounded(name, value) for name, value in fields.items()}


def _bounded(name: Field, value: Measured) -> Measured:
    low, high = BOUNDS[name]
    if isinstance(value, ReadFailure) or low <= value <= high:
        return value
    return ReadFailure(FailureKind.IMPLAUSIBLE, f"{name} {value:,}, expected {low:,} to {high:,}")


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process on a device; its control group names the container. Gaps: not told by process."""

    pid: int
    memory_bytes: Measured
    sm_percent: Measured
    cgroup: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True)
class Partition:
    id: str
    memory_used_bytes: Measured
    memory_total_bytes: Measured
    processes: tuple[ProcessUse, ...] | ReadFailure
    sm_percent: Measured = NOT_ASKED


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One look at one device.

    id                 `GPU-<uuid>`, as DCGM has it; `index-<n>` where even that cannot be read
    begin_ns, end_ns   CLOCK_BOOTTIME around the look
    """

    index: int
    id: str
    model: str
    begin_ns: int
    end_ns: int
    fields: Mapping[Field, Measured]
    processes: tuple[ProcessUse, ...] | ReadFailure | None = None
    partitions: tuple[Partition, ...] | ReadFailure | None = None
    vendor: str = NVIDIA

    @property
    def values(self) -> dict[Field, int]:
        return {name: v for name, v in self.fields.items() if not isinstance(v, ReadFailure)}

    @property
    def answered(self) -> bool:
        """Whether the device itself told anything; XIDs are told by the driver."""
        return not self.values.keys() <= EVENTS

    @property
    def gaps(self) -> dict[Field, ReadFailure]:
        return {name: v for name, v in self.fields.items() if isinstance(v, ReadFailure)}


_NO_LIBRARY: Final = ReadFailure(FailureKind.UNSUPPORTED, "has none")


@dataclass(frozen=True, slots=True)
class Inventory:
    devices: int
    driver: str | ReadFailure
    library: str | ReadFailure = _NO_LIBRARY
    throughput_is_cheap: bool = False


class DeviceReader(Protocol):
    """Reads the devices of one vendor. Any call may hang in a driver: see `bounded`."""

    def open(self) -> Inventory:
        """Begin. Raises DevicesUnavailable."""

    def read(
        self, index: int, fields: Collection[Field], *, processes: bool = False
    ) -> DeviceReading:
        """Look at one device; whatever fails becomes gaps."""

    def close(self) -> None:
        """Release everything; a second call does nothing."""


def all_failed(
    index: int, fields: Collection[Field], gap: ReadFailure, at_ns: int, device_id: str = ""
) -> DeviceReading:
    return DeviceReading(
        index, device_id or f"index-{index}", "", at_ns, at_ns, dict.fromkeys(fields, gap), gap, gap
    )


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One look at every device, and the fields without a value by why, since the source began."""

    devices: tuple[DeviceReading, ...]
    gaps: Mapping[tuple[Field, FailureKind], int] = field(default_factory=dict)


@runtime_checkable
class ReportsDevices(Protocol):
    def latest(self, now_boottime_ns: int) -> DeviceSample | None:
        """Give the last look, None once it is stale."""


def gpu_class(name: str, classes: Iterable[str]) -> str:
    """Give the catalogue's class of a GPU by the name that its driver has for it."""
    words = set(re.split(r"[ -]", name))
    return next((known for known in classes if known in words), "other")
