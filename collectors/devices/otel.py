"""A look in OpenTelemetry's names and units, where it has one for the field.

`hw.id` is the device's `GPU-<uuid>`, as DCGM has it. A gap gives no point: never a zero.
Source  OpenTelemetry, semantic conventions for hardware: GPU, common, fan and temperature metrics
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .device_port import DeviceReading, Field


@dataclass(frozen=True, slots=True)
class Otel:
    """OpenTelemetry's metric of a field; `per_unit` of ours make one of its units."""

    name: str
    unit: str
    per_unit: int = 1
    attributes: Mapping[str, str] = field(default_factory=dict)


def _errors(kind: str) -> Otel:
    return Otel("hw.errors", "{error}", 1, {"error.type": kind})


NAMES: Final[Mapping[Field, Otel]] = {
    Field.UTILISATION: Otel("hw.gpu.utilization", "1", 100, {"hw.gpu.task": "general"}),
    Field.MEMORY_USED: Otel("hw.gpu.memory.usage", "By"),
    Field.MEMORY_TOTAL: Otel("hw.gpu.memory.limit", "By"),
    Field.NVLINK_TX: Otel("hw.gpu.io", "By", 1, {"network.io.direction": "transmit"}),
    Field.NVLINK_RX: Otel("hw.gpu.io", "By", 1, {"network.io.direction": "receive"}),
    Field.POWER: Otel("hw.power", "W", 1_000),
    Field.TEMPERATURE: Otel("hw.temperature", "Cel"),
    Field.FAN: Otel("hw.fan.speed_ratio", "1", 100),
    Field.ECC_VOLATILE_CORRECTED: _errors("corrected"),
    Field.ECC_VOLATILE_UNCORRECTED: _errors("uncorrected"),
    Field.PCIE_REPLAYS: _errors("pcie_replay"),
    Field.NVLINK_ERRORS: _errors("nvlink"),
    Field.XID_EVENTS: _errors("xid"),
}


def points(reading: DeviceReading) -> list[dict[str, Any]]:
    """Give every field that was measured and has a name there."""
    device = {"hw.id": reading.id, "hw.type": "gpu", "hw.model": reading.model}
    return [
        {
            "name": otel.name,
            "unit": otel.unit,
            "value": value if otel.per_unit == 1 else value / otel.per_unit,
            "attributes": {**device, **otel.attributes},
        }
        for kind, value in sorted(reading.values.items())
        if (otel := NAMES.get(kind)) is not None
    ]
