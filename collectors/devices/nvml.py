"""NVIDIA devices by NVML, through the vendor's own binding `pynvml` (package nvidia-ml-py)."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, Final

import pynvml

from collectors.boot_clock import boottime_ns
from collectors.records.gap import Gap

from .device_port import DeviceReading, DevicesUnavailable, Field, Inventory, Measured
from .nvml_calls import MOST_DEVICES, Handle, ask, device_uuid, gap_of, processes_of
from .nvml_fields import GROUPS
from .nvml_gpm import MigInstances, PcieThroughput

MOST_EVENTS: Final = 256


class NvmlReader:
    """One NVML session; made and used in one process."""

    name = "nvml"

    def __init__(self) -> None:
        self._open = False
        self._xids: dict[str, list[int]] = {}
        self._events: Any = None
        self._watched: dict[int, Gap | None] = {}
        self._names: dict[int, str] = {}
        self._named: dict[int, str] = {}
        self._mig = MigInstances()
        self._pcie = PcieThroughput()

    def open(self) -> Inventory:
        try:
            pynvml.nvmlInit()
            self._open = True
            devices = min(pynvml.nvmlDeviceGetCount(), MOST_DEVICES)
        except pynvml.NVMLError as error:
            self.close()
            raise DevicesUnavailable(f"NVML: {error}") from None
        self._watch_events(devices)
        self._pcie.open(devices)
        return Inventory(
            devices,
            ask(lambda: str(pynvml.nvmlSystemGetDriverVersion())),
            ask(lambda: str(pynvml.nvmlSystemGetNVMLVersion())),
            throughput_is_cheap=self._pcie.cheap,
        )

    def read(
        self, index: int, fields: Collection[Field], *, processes: bool = False
    ) -> DeviceReading:
        begin_ns = boottime_ns()
        handle = ask(lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
        if isinstance(handle, Gap):
            end_ns = boottime_ns()
            gaps: dict[Field, Measured] = dict.fromkeys(fields, handle)
            # Off the bus it answers nothing; the XID that says so is the driver's, not the GPU's.
            told = dict(self._xid_fields(index, self._names.get(index, "")))
            if told.get(Field.XID_EVENTS):
                gaps |= {name: value for name, value in told.items() if name in gaps}
            name = self._names.get(index, f"index-{index}")
            return DeviceReading(index, name, "", begin_ns, end_ns, gaps)
        device_id = ask(partial(device_uuid, handle))
        model = ask(lambda: str(pynvml.nvmlDeviceGetName(handle)))
        known = self._names.get(index, f"index-{index}")
        name = known if isinstance(device_id, Gap) else device_id
        measured = dict(self._measure(index, name, handle, frozenset(fields)))
        users = processes_of(handle) if processes else None
        parts = self._mig.look(index, handle) if processes else None
        end_ns = boottime_ns()
        return DeviceReading(
            index, name, "" if isinstance(model, Gap) else model, begin_ns, end_ns, measured,
            users, parts,
        )  # fmt: skip

    def close(self) -> None:
        if self._events is not None:
            ask(lambda: pynvml.nvmlEventSetFree(self._events))
            self._events = None
        if self._open:
            self._mig.close()
            self._pcie.close()
            self._open = False
            ask(pynvml.nvmlShutdown)

    def _measure(
        self, index: int, name: str, handle: Handle, wanted: frozenset[Field]
    ) -> Iterator[tuple[Field, Measured]]:
        for group, call in GROUPS:
            if wanted.isdisjoint(group):
                continue
            values = ask(partial(call, handle))
            for place, field in enumerate(group):
                if field in wanted:
                    yield field, values if isinstance(values, Gap) else int(values[place])
        yield from self._pcie.measure(index, handle, wanted)
        if not wanted.isdisjoint({Field.XID_EVENTS, Field.XID_LAST}):
            yield from self._xid_fields(index, name)

    def _watch_events(self, devices: int) -> None:
        events = ask(pynvml.nvmlEventSetCreate)
        self._events = None if isinstance(events, Gap) else events
        for index in range(devices):
            self._watched[index] = (
                events if isinstance(events, Gap) else ask(partial(self._register, index))
            )

    def _register(self, index: int) -> None:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        kind = pynvml.nvmlEventTypeXidCriticalError
        pynvml.nvmlDeviceRegisterEvents(handle, kind, self._events)
        self._names[index] = self._named[_address(handle)] = device_uuid(handle)

    def _xid_fields(self, index: int, name: str) -> Iterator[tuple[Field, Measured]]:
        gap = self._watched.get(index) or self._drain_events()
        if isinstance(gap, Gap):
            yield Field.XID_EVENTS, gap
            yield Field.XID_LAST, gap
            return
        count, last = self._xids.get(name, [0, 0])
        yield Field.XID_EVENTS, count
        yield Field.XID_LAST, last

    def _drain_events(self) -> Gap | None:
        for _ in range(MOST_EVENTS):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError as error:
                return None if error.value == pynvml.NVML_ERROR_TIMEOUT else gap_of(error)
            name: str | Gap = self._named.get(_address(event.device), "")
            name = name or ask(partial(device_uuid, event.device))
            if not isinstance(name, Gap):
                count, _ = self._xids.get(name, [0, 0])
                self._xids[name] = [count + 1, int(event.eventData)]
        return None


def _address(handle: Handle) -> int:
    """A device's place in the driver's memory: its name even when it cannot say it any more."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
