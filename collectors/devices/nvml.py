"""NVIDIA devices by NVML, through the vendor's own binding `pynvml` (package nvidia-ml-py).

The call of each field is a row of `nvml_fields.GROUPS`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, Final

import pynvml

from collectors.boot_clock import boottime_ns
from collectors.records.basics import FailureKind, ReadFailure

from .device_port import (
    DeviceReading,
    DevicesUnavailable,
    Field,
    Inventory,
    Measured,
    Partition,
    plausible,
)
from .nvml_fields import (
    GROUPS,
    MOST_DEVICES,
    Handle,
    ask,
    device_uuid,
    failure_of,
    memory_of,
    processes_of,
)


def gpm_sample(get: Callable[[Any], object]) -> Any:
    sample = pynvml.nvmlGpmSampleAlloc()
    try:
        get(sample)
    except pynvml.NVMLError:
        pynvml.nvmlGpmSampleFree(sample)
        raise
    return sample


def gpm_metric(before: Any, now: Any, metric: int) -> float:
    asked = pynvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 1
    asked.sample1, asked.sample2 = before, now
    asked.metrics[0].metricId = metric
    pynvml.nvmlGpmMetricsGet(asked)
    if asked.metrics[0].nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(asked.metrics[0].nvmlReturn)
    return float(asked.metrics[0].value)


def gpm_supported(gpu: Handle) -> None:
    """Raise NVMLError where a GPU has no GPM."""
    if not pynvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


_BYTES_PER_KB: Final = 1_000
_BYTES_PER_MIB: Final = 1 << 20
_WATCHED: Final = {Field.PCIE_TX: 0, Field.PCIE_RX: 1}
_METRICS: Final = {
    Field.PCIE_TX: pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
    Field.PCIE_RX: pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
}


class PcieThroughput:
    """Remembers each GPU's last GPM sample: the traffic is told between two of them."""

    def __init__(self) -> None:
        self._samples: dict[int, Any] = {}
        self.cheap = False
        """Whether a look costs no more than other fields: all GPUs have GPM."""

    def open(self, devices: int) -> None:
        for index in range(devices):
            sample = ask(partial(_first_sample, index))
            if isinstance(sample, ReadFailure):
                self.close()
                return
            self._samples[index] = sample
        self.cheap = bool(devices)

    def measure(
        self, index: int, handle: Handle, wanted: Collection[Field]
    ) -> Iterator[tuple[Field, Measured]]:
        fields = [field for field in _METRICS if field in wanted]
        if self.cheap and fields:
            yield from self._between(index, handle, fields)
            return
        for field in fields:
            kilobytes = ask(partial(pynvml.nvmlDeviceGetPcieThroughput, handle, _WATCHED[field]))
            if not isinstance(kilobytes, ReadFailure):
                kilobytes *= _BYTES_PER_KB
            yield field, kilobytes

    def close(self) -> None:
        for sample in self._samples.values():
            ask(partial(pynvml.nvmlGpmSampleFree, sample))
        self._samples.clear()
        self.cheap = False

    def _between(
        self, index: int, handle: Handle, fields: list[Field]
    ) -> Iterator[tuple[Field, Measured]]:
        now = ask(partial(gpm_sample, partial(pynvml.nvmlGpmSampleGet, handle)))
        if isinstance(now, ReadFailure):
            yield from ((field, now) for field in fields)
            return
        before = self._samples.get(index)
        self._samples[index] = now
        for field in fields:
            found = ask(partial(gpm_metric, before, now, _METRICS[field]))
            yield field, found if isinstance(found, ReadFailure) else round(found * _BYTES_PER_MIB)
        ask(partial(pynvml.nvmlGpmSampleFree, before))


def _first_sample(index: int) -> Any:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    gpm_supported(handle)
    return gpm_sample(partial(pynvml.nvmlGpmSampleGet, handle))


_FIRST_LOOK: Final = ReadFailure(FailureKind.NOT_YET, "it takes two looks: this was the first")


class MigInstances:
    """Remembers each instance's last GPM sample: how busy it was is told between two of them."""

    def __init__(self) -> None:
        self._samples: dict[int, dict[str, Any]] = {}

    def look(self, index: int, gpu: Handle) -> tuple[Partition, ...] | ReadFailure:
        mode = ask(lambda: pynvml.nvmlDeviceGetMigMode(gpu)[0])
        if isinstance(mode, ReadFailure) or not mode:
            self._keep(index, {})
            return mode if isinstance(mode, ReadFailure) else ()
        most = ask(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu))
        if isinstance(most, ReadFailure):
            return most
        before, now = self._samples.get(index, {}), dict[str, Any]()
        parts = []
        for place in range(min(most, MOST_DEVICES)):
            part = ask(partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, gpu, place))
            if isinstance(part, ReadFailure):
                continue  # a place without an instance
            name = ask(partial(device_uuid, part))
            label = f"partition-{place}" if isinstance(name, ReadFailure) else name
            memory = ask(partial(memory_of, part))
            used, total = (memory, memory) if isinstance(memory, ReadFailure) else memory
            sample = ask(partial(_mig_sample, gpu, part))
            if not isinstance(sample, ReadFailure):
                now[label] = sample
            share = _mig_share(before.get(label), sample)
            parts.append(Partition(label, used, total, processes_of(part), share))
        self._keep(index, now)
        return tuple(parts)

    def close(self) -> None:
        for index in list(self._samples):
            self._keep(index, {})

    def _keep(self, index: int, now: dict[str, Any]) -> None:
        for old in self._samples.pop(index, {}).values():
            ask(partial(pynvml.nvmlGpmSampleFree, old))
        if now:
            self._samples[index] = now


def _mig_sample(gpu: Handle, part: Handle) -> Any:
    gpm_supported(gpu)
    instance = pynvml.nvmlDeviceGetGpuInstanceId(part)
    return gpm_sample(partial(pynvml.nvmlGpmMigSampleGet, gpu, instance))


def _mig_share(before: Any, now: Any) -> Measured:
    if isinstance(now, ReadFailure):
        return now
    if before is None:
        return _FIRST_LOOK
    return ask(lambda: round(gpm_metric(before, now, pynvml.NVML_GPM_METRIC_SM_UTIL)))


MOST_EVENTS: Final = 256
_UPDATED: Final = ": the driver was updated while it was loaded; reboot"


class NvmlReader:
    """One NVML session; made and used in one process."""

    def __init__(self) -> None:
        self._open = False
        self._xids: dict[str, list[int]] = {}
        self._events: Any = None
        self._watched: dict[int, ReadFailure | None] = {}
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
            mixed = error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
            raise DevicesUnavailable(f"NVML: {error}{_UPDATED if mixed else ''}") from None
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
        if isinstance(handle, ReadFailure):
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
        name = known if isinstance(device_id, ReadFailure) else device_id
        measured = dict(self._measure(index, name, handle, frozenset(fields)))
        users = processes_of(handle) if processes else None
        parts = self._mig.look(index, handle) if processes else None
        end_ns = boottime_ns()
        return DeviceReading(
            index, name, model if isinstance(model, str) else "", begin_ns, end_ns,
            plausible(measured), users, parts,
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
                    yield field, values if isinstance(values, ReadFailure) else int(values[place])
        yield from self._pcie.measure(index, handle, wanted)
        if not wanted.isdisjoint({Field.XID_EVENTS, Field.XID_LAST}):
            yield from self._xid_fields(index, name)

    def _watch_events(self, devices: int) -> None:
        events = ask(pynvml.nvmlEventSetCreate)
        self._events = None if isinstance(events, ReadFailure) else events
        for index in range(devices):
            self._watched[index] = (
                events if isinstance(events, ReadFailure) else ask(partial(self._register, index))
            )

    def _register(self, index: int) -> None:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        kind = pynvml.nvmlEventTypeXidCriticalError
        pynvml.nvmlDeviceRegisterEvents(handle, kind, self._events)
        self._names[index] = self._named[_address(handle)] = device_uuid(handle)

    def _xid_fields(self, index: int, name: str) -> Iterator[tuple[Field, Measured]]:
        gap = self._watched.get(index) or self._drain_events()
        if isinstance(gap, ReadFailure):
            yield Field.XID_EVENTS, gap
            yield Field.XID_LAST, gap
            return
        count, last = self._xids.get(name, [0, 0])
        yield Field.XID_EVENTS, count
        yield Field.XID_LAST, last

    def _drain_events(self) -> ReadFailure | None:
        for _ in range(MOST_EVENTS):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError as error:
                return None if error.value == pynvml.NVML_ERROR_TIMEOUT else failure_of(error)
            name: str | ReadFailure = self._named.get(_address(event.device), "")
            name = name or ask(partial(device_uuid, event.device))
            if not isinstance(name, ReadFailure):
                count, _ = self._xids.get(name, [0, 0])
                self._xids[name] = [count + 1, int(event.eventData)]
        return None


def _address(handle: Handle) -> int:
    """A device's place in the driver's memory: its name even when it cannot say it any more."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
