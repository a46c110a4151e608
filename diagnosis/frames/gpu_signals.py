"""Signals of each GPU from looks at the devices, and of processes that call GPU libraries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from collectors.devices.device_port import DeviceReading, Field, ProcessUse
from collectors.kernel_log import load_rules
from collectors.records.basics import FailureKind, ReadFailure
from collectors.records.gpu_calls import Direction, GpuCalls, ProbeGroup, ProcessCalls

FRESH_NS: Final = 7_500_000_000
"""Most fields are read every 5 s: a value stands until the next look, and not for long after."""

_KEPT_NS: Final = 60_000_000_000
"""Processes of a GPU that is gone or hangs expire after this: nothing else tells whose it was."""
_UNSAID: Final = {
    FailureKind.UNPLUGGED: "gpu_lost_count",
    FailureKind.TIMED_OUT: "gpu_silent_count",
}

_AS_READ: Final = {
    Field.UTILISATION: ("gpu_busy_percent", 1.0),
    Field.MEMORY_BUSY: ("gpu_memory_busy_percent", 1.0),
    Field.SM_CLOCK: ("sm_clock_mhz", 1.0),
    Field.MEMORY_CLOCK: ("memory_clock_mhz", 1.0),
    Field.POWER: ("power_watts", 1e-3),
    Field.TEMPERATURE: ("temperature_celsius", 1.0),
    Field.FAN: ("fan_percent", 1.0),
    Field.PCIE_TX: ("pcie_tx_bytes_per_s", 1.0),
    Field.PCIE_RX: ("pcie_rx_bytes_per_s", 1.0),
    Field.NVLINKS_DOWN: ("nvlinks_down_count", 1.0),
    Field.ROWS_PENDING: ("row_remap_pending_count", 1.0),
    Field.ROWS_FAILED: ("row_remap_failed_count", 1.0),
}

_OVER: Final = {
    "sm_clock_percent": (Field.SM_CLOCK, Field.SM_CLOCK_MAX),
    "power_limit_percent": (Field.POWER, Field.POWER_LIMIT),
    "gpu_memory_used_percent": (Field.MEMORY_USED, Field.MEMORY_TOTAL),
    "pcie_width_percent": (Field.PCIE_WIDTH, Field.PCIE_WIDTH_MAX),
    "pcie_generation_percent": (Field.PCIE_GENERATION, Field.PCIE_GENERATION_MAX),
}

_THROTTLE: Final = {
    "throttled_thermal_percent": 0x20 | 0x40,
    "throttled_power_percent": 0x04 | 0x80,
    "throttled_hardware_percent": 0x08 | 0x40 | 0x80,
}
"""NVML's bits: 4 software power cap, 8 hardware slowdown, 0x20 and 0x40 software and hardware
thermal slowdown, 0x80 power brake."""

_COUNTERS: Final = {
    "pcie_replays_per_s": (Field.PCIE_REPLAYS,),
    "nvlink_errors_per_s": (Field.NVLINK_ERRORS,),
    "nvlink_tx_bytes_per_s": (Field.NVLINK_TX,),
    "nvlink_rx_bytes_per_s": (Field.NVLINK_RX,),
    "ecc_corrected_per_s": (Field.ECC_VOLATILE_CORRECTED,),
    "ecc_uncorrected_per_s": (Field.ECC_VOLATILE_UNCORRECTED,),
    "rows_remapped_per_s": (Field.ROWS_CORRECTED, Field.ROWS_UNCORRECTED),
}

_XIDS: Final = {
    "gpu_hbm3_memory": "memory",
    "gpu_sram_memory": "memory",
    "gpu_system_processor": "processor",
    "faulty_gpu": "faulty",
    "power_supply": "power",
}
XID_KINDS: Final = (*dict.fromkeys(_XIDS.values()), "other")


@dataclass(slots=True)
class _Device:
    values: dict[Field, tuple[int, int]] = field(default_factory=dict)
    rates: dict[str, tuple[float, int]] = field(default_factory=dict)
    processes: dict[int, ProcessUse] = field(default_factory=dict)
    processes_ns: int = 0
    listed_ns: int = 0
    unsaid: dict[str, tuple[float, int]] = field(default_factory=dict)


class GpuSignals:
    def __init__(self) -> None:
        self._devices: dict[int, _Device] = {}

    def look(self, readings: Iterable[DeviceReading]) -> None:
        """Take looks; one that was taken before changes nothing."""
        for reading in readings:
            device = self._devices.setdefault(reading.index, _Device())
            _count(device, reading)
            for name, value in reading.values.items():
                device.values[name] = (value, reading.end_ns)
            for name in reading.gaps:
                device.values.pop(name, None)
            _see_users(device, reading)
            _see_silence(device, reading)

    def signals(self, now_ns: int) -> dict[int, dict[str, float]]:
        """Give what is fresh, by index; a GPU of which nothing is fresh is left out."""
        found = {index: _signals(device, now_ns) for index, device in sorted(self._devices.items())}
        return {index: signals for index, signals in found.items() if signals}

    def processes(self, now_ns: int) -> dict[int, Mapping[int, ProcessUse]]:
        return {
            index: device.processes
            for index, device in sorted(self._devices.items())
            if device.processes_ns and now_ns - device.processes_ns <= FRESH_NS
        }


def _see_silence(device: _Device, reading: DeviceReading) -> None:
    """Note whether the device is gone or does not answer; one that was left alone says neither."""
    if reading.answered:
        device.unsaid = dict.fromkeys(_UNSAID.values(), (0.0, reading.end_ns))
        return
    for kind in {gap.kind for gap in reading.gaps.values()} & _UNSAID.keys():
        device.unsaid[_UNSAID[kind]] = (1.0, reading.end_ns)


def _see_users(device: _Device, reading: DeviceReading) -> None:
    """Take the list of processes; while the device answers nothing the last one stands."""
    if isinstance(reading.processes, tuple) or isinstance(reading.partitions, tuple):
        device.processes = {process.pid: process for process in _processes(reading)}
        device.processes_ns = device.listed_ns = reading.end_ns
    elif reading.answered:
        if reading.processes is not None:
            device.processes, device.processes_ns = {}, 0
    elif reading.end_ns - device.listed_ns <= _KEPT_NS and device.processes:
        gap = ReadFailure(FailureKind.UNPLUGGED, "the device does not answer")
        kept = device.processes.values()
        device.processes = {
            process.pid: replace(process, memory_bytes=gap, sm_percent=gap) for process in kept
        }
        device.processes_ns = reading.end_ns


def share(use: ProcessUse) -> float | None:
    """Give the share of the SMs that a process had, in percent; None where it is not told."""
    return None if isinstance(use.sm_percent, ReadFailure) else float(use.sm_percent)


def _processes(reading: DeviceReading) -> Iterable[ProcessUse]:
    if isinstance(reading.processes, tuple):
        yield from reading.processes
    if isinstance(reading.partitions, tuple):
        for part in reading.partitions:
            if isinstance(part.processes, tuple):
                yield from part.processes


def _count(device: _Device, reading: DeviceReading) -> None:
    """Turn counters into rates since the look before; one that fell was reset and says nothing."""
    now = reading.values
    for name, counters in _COUNTERS.items():
        grown = [_growth(device, reading, counter) for counter in counters if counter in now]
        told = [rate for rate in grown if rate is not None]
        if grown and not told:
            device.rates.pop(name, None)
        elif told:
            device.rates[name] = (sum(told), reading.end_ns)
    xids = _growth(device, reading, Field.XID_EVENTS)
    if xids is None:
        return
    cell = load_rules().xids.get(now.get(Field.XID_LAST, 0), "")
    kind = _XIDS.get(cell, "other")
    for xid_kind in XID_KINDS:
        device.rates[f"xids_{xid_kind}_per_s"] = (xids if xid_kind == kind else 0.0, reading.end_ns)


def _growth(device: _Device, reading: DeviceReading, counter: Field) -> float | None:
    value, before = reading.values.get(counter), device.values.get(counter)
    if value is None or before is None or value < before[0] or reading.end_ns <= before[1]:
        return None
    return (value - before[0]) * 1e9 / (reading.end_ns - before[1])


def _signals(device: _Device, now_ns: int) -> dict[str, float]:
    values = {
        name: value for name, (value, at_ns) in device.values.items() if now_ns - at_ns <= FRESH_NS
    }
    found = {
        name: values[source] * factor
        for source, (name, factor) in _AS_READ.items()
        if source in values
    }
    for name, (part, whole) in _OVER.items():
        if part in values and values.get(whole):
            found[name] = 100.0 * values[part] / values[whole]
    if Field.THROTTLE in values:
        for name, bits in _THROTTLE.items():
            found[name] = 100.0 if values[Field.THROTTLE] & bits else 0.0
    for name, (rate, at_ns) in (device.rates | device.unsaid).items():
        if now_ns - at_ns <= FRESH_NS:
            found[name] = rate
    if device.processes_ns and now_ns - device.processes_ns <= FRESH_NS:
        found["gpu_processes_count"] = float(len(device.processes))
    return found


_COPIES: Final = {
    Direction.HOST_TO_DEVICE: "copy_to_device_bytes_per_s",
    Direction.DEVICE_TO_HOST: "copy_to_host_bytes_per_s",
}
_SHORTEST_FRESH_NS: Final = 2_500_000_000
LAUNCHES: Final = "gpu_launches_per_s"


@dataclass(frozen=True, slots=True)
class Caller:
    pid: int
    start_ns: int
    name: str
    signals: Mapping[str, float]


class CallSignals:
    """Keeps the last record: it stands until the next one, and not for long after."""

    def __init__(self) -> None:
        self._callers: dict[int, Caller] = {}
        self._ends_ns = self._fresh_ns = 0

    def take(self, calls: GpuCalls) -> None:
        """Take one record. It covers one drain, or a governor's period of some seconds."""
        if calls.span_ns <= 0:
            return
        self._callers = {
            process.process.pid: Caller(
                process.process.pid,
                process.process.start_ns,
                process.identity.name,
                _call_signals(process, calls),
            )
            for process in calls.processes
        }
        self._ends_ns = calls.boottime_ns + calls.span_ns
        self._fresh_ns = max(_SHORTEST_FRESH_NS, 2 * calls.span_ns)

    def callers(self, now_ns: int) -> Mapping[int, Caller]:
        return self._callers if now_ns - self._ends_ns <= self._fresh_ns else {}


def summed(callers: Iterable[Caller]) -> dict[str, float]:
    found: dict[str, float] = {}
    for caller in callers:
        for name, value in caller.signals.items():
            found[name] = found.get(name, 0.0) + value
    return found


def on_gpus(
    callers: Mapping[int, Caller], users: Mapping[int, Mapping[int, ProcessUse]]
) -> dict[int, dict[str, float]]:
    """Give what was copied to and from each GPU; a process on several shares alike."""
    places: dict[int, list[int]] = {}
    for gpu, pids in users.items():
        for pid in pids:
            places.setdefault(pid, []).append(gpu)
    found: dict[int, dict[str, float]] = {
        gpu: dict.fromkeys(_COPIES.values(), 0.0) for gpu in users if callers
    }
    for pid, gpus in places.items():
        signals = callers[pid].signals if pid in callers else {}
        for gpu in gpus if signals else ():
            for name in _COPIES.values():
                found[gpu][name] += signals.get(name, 0.0) / len(gpus)
    return found


def sharing(
    own: Collection[int],
    gpus: Iterable[int],
    users: Mapping[int, Mapping[int, ProcessUse]],
    callers: Mapping[int, Caller],
) -> dict[str, float]:
    """Tell a subject's processes from the others on its GPUs; the GPU with most of each counts."""
    found: dict[str, float] = {}
    for gpu in gpus:
        here = users.get(gpu, {})
        for name, mine in (("gpu_own_percent", True), ("gpu_others_percent", False)):
            shares = [share(use) for pid, use in here.items() if (pid in own) is mine]
            told = [known for known in shares if known is not None]
            if len(told) == len(shares) and (here or mine):
                found[name] = max(found.get(name, 0.0), sum(told))
        if callers:
            others = sum(
                callers[pid].signals[LAUNCHES] for pid in here if pid in callers and pid not in own
            )
            before = found.get("gpu_others_launches_per_s", 0.0)
            found["gpu_others_launches_per_s"] = max(before, others)
    return found


def _call_signals(process: ProcessCalls, calls: GpuCalls) -> dict[str, float]:
    """Give one process's rates: what was seen over the share that was seen."""
    per_s = 1e9 / calls.span_ns
    found = {LAUNCHES: process.launches.value * per_s}
    if calls.share(ProbeGroup.SYNCHRONISE) > 0:
        found["gpu_wait_ms_per_s"] = 1e3 * process.wait_share(calls.span_ns)
    copied = calls.share(ProbeGroup.COPY)
    if copied > 0:
        found |= dict.fromkeys(_COPIES.values(), 0.0)
        for copy in process.copies:
            if copy.direction in _COPIES:
                found[_COPIES[copy.direction]] += copy.bytes / copied * per_s
    seen = calls.share(ProbeGroup.COLLECTIVE)
    if seen > 0:
        found["collectives_per_s"] = sum(c.calls.value for c in process.collectives) * per_s
        found["collective_bytes_per_s"] = sum(c.bytes for c in process.collectives) / seen * per_s
        found["collective_ms_per_s"] = (
            sum(c.duration_ns for c in process.collectives) / seen * per_s / 1e6
        )
    found["gpu_failed_calls_per_s"] = sum(error.failures for error in process.errors) * per_s
    if process.memory is not None:
        found["gpu_memory_live_bytes"] = float(process.memory.live_bytes)
    return found
