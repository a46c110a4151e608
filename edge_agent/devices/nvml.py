"""NVIDIA devices by NVML, through the vendor's own binding `pynvml` (package nvidia-ml-py)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

# Imported here and not at the first use: by then the agent may have left root, and with it the
# folder of its interpreter.
import pynvml

from .port import (
    DeviceReading,
    DevicesUnavailable,
    Field,
    Gap,
    GapKind,
    Inventory,
    Measured,
    Partition,
    ProcessUse,
)

MOST_DEVICES: Final = 64
MOST_PROCESSES: Final = 256
MOST_EVENTS: Final = 256
_UTILISATION_SPAN_US: Final = 1_000_000
_BYTES_PER_KB: Final = 1_000
_BYTES_PER_KIB: Final = 1_024
_ALL_LINKS: Final = 0xFFFF_FFFF

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
_Handle = Any


def gap_of(error: pynvml.NVMLError) -> Gap:
    """Say why a call gave nothing."""
    return Gap(_KINDS.get(error.value, GapKind.FAILED), str(error))


def _ask(call: Callable[[], _T]) -> _T | Gap:
    try:
        return call()
    except pynvml.NVMLError as error:
        return gap_of(error)


class NvmlReader:
    """One NVML session; made and used in one process."""

    name = "nvml"

    def __init__(self) -> None:
        self._open = False
        self._xids: dict[str, list[int]] = {}
        self._events: Any = None
        self._watched: dict[int, Gap | None] = {}

    def open(self) -> Inventory:
        try:
            pynvml.nvmlInit()
            self._open = True
            devices = min(pynvml.nvmlDeviceGetCount(), MOST_DEVICES)
        except pynvml.NVMLError as error:
            self.close()
            raise DevicesUnavailable(f"NVML: {error}") from None
        self._watch_events(devices)
        return Inventory(
            devices,
            _ask(lambda: str(pynvml.nvmlSystemGetDriverVersion())),
            _ask(lambda: str(pynvml.nvmlSystemGetNVMLVersion())),
        )

    def read(
        self, index: int, fields: Collection[Field], *, processes: bool = False
    ) -> DeviceReading:
        begin_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        handle = _ask(lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
        if isinstance(handle, Gap):
            end_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            gaps: dict[Field, Measured] = dict.fromkeys(fields, handle)
            return DeviceReading(index, f"index-{index}", "", begin_ns, end_ns, gaps)
        device_id = _ask(partial(_uuid, handle))
        model = _ask(lambda: str(pynvml.nvmlDeviceGetName(handle)))
        name = f"index-{index}" if isinstance(device_id, Gap) else device_id
        measured = dict(self._measure(index, name, handle, frozenset(fields)))
        users = _processes(handle) if processes else None
        parts = _partitions(handle) if processes else None
        end_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return DeviceReading(
            index, name, "" if isinstance(model, Gap) else model, begin_ns, end_ns, measured,
            users, parts,
        )  # fmt: skip

    def close(self) -> None:
        if self._events is not None:
            _ask(lambda: pynvml.nvmlEventSetFree(self._events))
            self._events = None
        if self._open:
            self._open = False
            _ask(pynvml.nvmlShutdown)

    def _measure(
        self, index: int, name: str, handle: _Handle, wanted: frozenset[Field]
    ) -> Iterator[tuple[Field, Measured]]:
        for group, call in _GROUPS:
            if wanted.isdisjoint(group):
                continue
            values = _ask(partial(call, handle))
            for place, field in enumerate(group):
                if field in wanted:
                    yield field, values if isinstance(values, Gap) else int(values[place])
        if not wanted.isdisjoint({Field.XID_EVENTS, Field.XID_LAST}):
            yield from self._xid_fields(index, name)

    def _watch_events(self, devices: int) -> None:
        events = _ask(pynvml.nvmlEventSetCreate)
        self._events = None if isinstance(events, Gap) else events
        for index in range(devices):
            self._watched[index] = (
                events if isinstance(events, Gap) else _ask(partial(self._register, index))
            )

    def _register(self, index: int) -> None:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        kind = pynvml.nvmlEventTypeXidCriticalError
        pynvml.nvmlDeviceRegisterEvents(handle, kind, self._events)

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
            name = _ask(partial(_uuid, event.device))
            if not isinstance(name, Gap):
                count, _ = self._xids.get(name, [0, 0])
                self._xids[name] = [count + 1, int(event.eventData)]
        return None


def _uuid(handle: _Handle) -> str:
    return str(pynvml.nvmlDeviceGetUUID(handle))


def _utilisation(handle: _Handle) -> tuple[int, int]:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return rates.gpu, rates.memory


def _memory(handle: _Handle) -> tuple[int, int]:
    # Version 2 leaves the driver's reserve out of what is used, as nvidia-smi does.
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    return memory.used, memory.total


def _nvlinks(handle: _Handle) -> tuple[int, int]:
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


def _nvlink_errors(handle: _Handle) -> tuple[int]:
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


def _nvlink_bytes(name: int) -> Callable[[_Handle], tuple[int]]:
    """Payload over all links: the scope names one link, or all of them."""

    def read(handle: _Handle) -> tuple[int]:
        (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [(name, _ALL_LINKS)])
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(value.nvmlReturn)
        return (int(value.value.ullVal) * _BYTES_PER_KIB,)

    return read


def _ecc(kind: int, counter: int) -> Callable[[_Handle], tuple[int]]:
    return lambda handle: (pynvml.nvmlDeviceGetTotalEccErrors(handle, kind, counter),)


def _one(name: str, *arguments: int, times: int = 1) -> Callable[[_Handle], tuple[int]]:
    return lambda handle: (getattr(pynvml, name)(handle, *arguments) * times,)


_CORRECTED, _UNCORRECTED = (
    pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
    pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
)
_VOLATILE, _AGGREGATE = pynvml.NVML_VOLATILE_ECC, pynvml.NVML_AGGREGATE_ECC

_GROUPS: Final[tuple[tuple[tuple[Field, ...], Callable[[_Handle], tuple[int, ...]]], ...]] = (
    ((Field.UTILISATION, Field.MEMORY_BUSY), _utilisation),
    ((Field.MEMORY_USED, Field.MEMORY_TOTAL), _memory),
    ((Field.SM_CLOCK,), _one("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM)),
    ((Field.SM_CLOCK_MAX,), _one("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_SM)),
    ((Field.MEMORY_CLOCK,), _one("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM)),
    ((Field.POWER,), _one("nvmlDeviceGetPowerUsage")),
    ((Field.POWER_LIMIT,), _one("nvmlDeviceGetEnforcedPowerLimit")),
    ((Field.TEMPERATURE,), _one("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)),
    ((Field.FAN,), _one("nvmlDeviceGetFanSpeed")),
    ((Field.PCIE_TX,), _one("nvmlDeviceGetPcieThroughput", 0, times=_BYTES_PER_KB)),
    ((Field.PCIE_RX,), _one("nvmlDeviceGetPcieThroughput", 1, times=_BYTES_PER_KB)),
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


def _processes(handle: _Handle) -> tuple[ProcessUse, ...] | Gap:
    running = _ask(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
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


def _process_shares(handle: _Handle) -> dict[int, int] | Gap:
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


def _partitions(handle: _Handle) -> tuple[Partition, ...] | Gap:
    mode = _ask(lambda: pynvml.nvmlDeviceGetMigMode(handle)[0])
    if isinstance(mode, Gap) or not mode:
        return mode if isinstance(mode, Gap) else ()
    most = _ask(lambda: pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))
    if isinstance(most, Gap):
        return most
    parts = []
    for index in range(min(most, MOST_DEVICES)):
        part = _ask(partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index))
        if isinstance(part, Gap):
            continue  # a place without an instance
        name = _ask(partial(_uuid, part))
        memory = _ask(partial(_memory, part))
        used, total = (memory, memory) if isinstance(memory, Gap) else memory
        label = f"partition-{index}" if isinstance(name, Gap) else name
        parts.append(Partition(label, used, total, _processes(part)))
    return tuple(parts)


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
