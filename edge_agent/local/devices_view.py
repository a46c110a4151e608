"""What a device source last read, as metric rows: any vendor's source that has `latest`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Protocol, runtime_checkable

from .rows import MetricRow, clean_name, unit_of

PREFIX: Final = "gpu."
MOST_DEVICES: Final = 64


@runtime_checkable
class ShowsDevices(Protocol):
    """A source with a last look at its devices, None when that look is stale."""

    def latest(self, now_boottime_ns: int) -> Any: ...


class DeviceRows:
    """Gives each look's values once."""

    def __init__(self) -> None:
        self._seen_ns: dict[tuple[str, str], int] = {}
        self.models: dict[str, str] = {}

    def rows(self, source_name: str, source: object, now_boottime_ns: int) -> Iterator[MetricRow]:
        """Give what is new since the last call; a failed field is absent, never zero."""
        if not isinstance(source, ShowsDevices):
            return
        sweep = source.latest(now_boottime_ns)
        for device in list(getattr(sweep, "devices", ()))[:MOST_DEVICES]:
            device_id, end_ns = clean_name(str(device.id)), int(device.end_ns)
            if self._seen_ns.get((source_name, device_id)) == end_ns:
                continue
            self._seen_ns[source_name, device_id] = end_ns
            self.models[device_id] = clean_name(str(getattr(device, "model", "")))
            values: Mapping[object, int] = device.values
            begin_ns = int(device.begin_ns)
            for metric, value in values.items():
                name = str(getattr(metric, "value", metric))
                yield MetricRow(
                    begin_ns, max(0, end_ns - begin_ns), source_name, f"{PREFIX}{name}",
                    device_id, unit_of(name), float(value),
                )  # fmt: skip
