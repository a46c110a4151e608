"""A look in OpenTelemetry's names and units, where it has one for the field.

A gap gives no point. Source: semantic conventions for hardware: GPU, common, fan, temperature
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from .device_port import DeviceReading, Field


class Instrument(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    UP_DOWN_COUNTER = "updowncounter"


@dataclass(frozen=True, slots=True)
class Otel:
    name: str
    unit: str
    per_unit: int = 1
    attributes: Mapping[str, str] = field(default_factory=dict)
    instrument: Instrument = Instrument.GAUGE

    def value(self, measured: int) -> int | float:
        return measured if self.per_unit == 1 else measured / self.per_unit


def _errors(kind: str) -> Otel:
    return Otel("hw.errors", "{error}", 1, {"error.type": kind}, Instrument.COUNTER)


def _io(direction: str) -> Otel:
    attributes = {"network.io.direction": direction}
    return Otel("hw.gpu.io", "By", 1, attributes, Instrument.COUNTER)


def _memory(name: str) -> Otel:
    return Otel(name, "By", instrument=Instrument.UP_DOWN_COUNTER)


NAMES: Final[Mapping[Field, Otel]] = {
    Field.UTILISATION: Otel("hw.gpu.utilization", "1", 100, {"hw.gpu.task": "general"}),
    Field.MEMORY_USED: _memory("hw.gpu.memory.usage"),
    Field.MEMORY_TOTAL: _memory("hw.gpu.memory.limit"),
    Field.NVLINK_TX: _io("transmit"),
    Field.NVLINK_RX: _io("receive"),
    Field.POWER: Otel("hw.power", "W", 1_000),
    Field.TEMPERATURE: Otel("hw.temperature", "Cel"),
    Field.FAN: Otel("hw.fan.speed_ratio", "1", 100),
    Field.ECC_VOLATILE_CORRECTED: _errors("corrected"),
    Field.ECC_VOLATILE_UNCORRECTED: _errors("uncorrected"),
    Field.PCIE_REPLAYS: _errors("pcie_replay"),
    Field.NVLINK_ERRORS: _errors("nvlink"),
    Field.XID_EVENTS: _errors("xid"),
}


def device_attributes(reading: DeviceReading) -> dict[str, str]:
    return {"hw.id": reading.id, "hw.type": "gpu", "hw.model": reading.model}


def measured(reading: DeviceReading) -> Iterator[tuple[Otel, int | float]]:
    for kind, value in sorted(reading.values.items()):
        if (otel := NAMES.get(kind)) is not None:
            yield otel, otel.value(value)


def points(reading: DeviceReading) -> list[dict[str, Any]]:
    device = device_attributes(reading)
    return [
        {
            "name": otel.name,
            "unit": otel.unit,
            "value": value,
            "attributes": {**device, **otel.attributes},
        }
        for otel, value in measured(reading)
    ]
