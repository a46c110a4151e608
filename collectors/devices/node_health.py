"""The node-health table: a verdict with a reason for each row; what was not read never passes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from collectors.kernel_files import Tree
from collectors.kernel_log import Sign, load_rules
from collectors.records.basics import FailureKind, ReadFailure
from transport.process.printable import listed
from transport.settings.config import build, read_table

from .bandwidth import Bandwidth
from .device_port import DeviceReading, Field, Inventory

ANY: Final = "any"


@dataclass(frozen=True, slots=True)
class MachineType:
    """Limits; `machine_types.toml` says what each means. None: not checked."""

    gpu_count: int | None = None
    nvlinks: int | None = None
    pcie_width: int | None = None
    sm_clock_max_mhz: int | None = None
    temperature_at_most_celsius: int | None = None
    ecc_corrected_at_most: int | None = None
    ecc_uncorrected_at_most: int | None = None
    rows_uncorrected_at_most: int | None = None
    throttle_allowed: int | None = None
    xids: tuple[int, ...] = ()
    host_gb_per_s: int | None = None
    host_link_percent: int | None = None
    peer_gb_per_s: int | None = None


def machine_types(path: Path | None = None) -> dict[str, MachineType]:
    """Read the table; what a type leaves out is that of `any`. Raises ConfigError."""
    path = path or Path(__file__).with_name("machine_types.toml")
    tables = read_table(path)
    common = tables.get(ANY, {})
    return {
        name: build(MachineType, {**common, **table}, f"{path}: {name}.")
        for name, table in tables.items()
    }


class HealthVerdict(StrEnum):
    PASS = "pass"  # noqa: S105 (no password)
    FAIL = "fail"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class HealthRow:
    check: str
    verdict: HealthVerdict
    reason: str


Complaint = tuple[HealthVerdict, str]

_LOST: Final = (
    FailureKind.UNPLUGGED,
    FailureKind.TIMED_OUT,
    FailureKind.LEFT_ALONE,
    FailureKind.DAMAGED,
)
"""A GPU that is gone, hangs or is hurt fails what is asked of it; other gaps say nothing."""

_GB: Final = 1_000_000_000
_LANE_GB_PER_S: Final = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""What a lane of each PCIe generation carries one way, after its line code."""


def check_node(
    inventory: Inventory | ReadFailure,
    readings: Sequence[DeviceReading],
    signs: Sequence[Sign] | ReadFailure,
    machine: MachineType,
    bandwidths: Sequence[Bandwidth | ReadFailure] | None = None,
    on_pci: int | None = None,
) -> list[HealthRow]:
    """Fill the table.

    signs     what the kernel's log says of GPUs
    on_pci    NVIDIA's GPUs that PCI lists, None where that says nothing
    """
    if isinstance(inventory, ReadFailure):
        return [HealthRow("driver", HealthVerdict.FAIL, inventory.reason)]
    rows = [_count(inventory, readings, machine, on_pci)]
    driver = inventory.driver
    if isinstance(driver, ReadFailure):
        rows.append(HealthRow("driver", HealthVerdict.UNKNOWN, driver.reason))
    else:
        verdict = HealthVerdict.PASS if readings else HealthVerdict.UNKNOWN
        rows.append(HealthRow("driver", verdict, driver if readings else f"{driver}, {_NO_GPU}"))
    most_links = max((one.values.get(Field.NVLINKS_UP, 0) for one in readings), default=0)
    links = replace(machine, nvlinks=machine.nvlinks or most_links)
    for name, fields, judge in _CHECKS:
        rows.append(_each(name, fields, judge, readings, links))
    rows[3:3] = _xids(signs, readings, machine)
    rows += [_bandwidth(name, readings, bandwidths, machine) for name in _WAYS]
    return rows


_NO_GPU: Final = "no GPU"
_PCI: Final = "sys/bus/pci/devices"
_CONTAINERS: Final = (".dockerenv", "run/.containerenv", "run/secrets/kubernetes.io")
_CONTROLLER_3D: Final = 0x0302
_NVIDIA_PCI: Final = 0x10DE


def gpus_on_pci(tree: Tree) -> int | None:
    """Count NVIDIA's 3D controllers that no other driver has; None in a container.

    There PCI lists the host's GPUs, and the driver those that the container was given.
    """
    if "NVIDIA_VISIBLE_DEVICES" in os.environ or any(map(tree.exists, _CONTAINERS)):
        return None
    found = 0
    for address in tree.entries(_PCI):
        device = f"{_PCI}/{address}"
        kind, vendor = tree.number(f"{device}/class"), tree.number(f"{device}/vendor")
        if isinstance(kind, ReadFailure) or kind >> 8 != _CONTROLLER_3D or vendor != _NVIDIA_PCI:
            continue
        driver = Path(os.path.realpath(tree.root / device / "driver")).name
        found += driver in {"nvidia", "driver"} and not tree.exists(f"{device}/physfn")
    return found


def _count(
    inventory: Inventory,
    readings: Sequence[DeviceReading],
    machine: MachineType,
    on_pci: int | None,
) -> HealthRow:
    answering = sum(reading.answered for reading in readings)
    expected = inventory.devices if machine.gpu_count is None else machine.gpu_count
    lost = on_pci is not None and on_pci > inventory.devices
    good = answering == inventory.devices == expected and expected > 0 and not lost
    verdict = HealthVerdict.PASS if good else HealthVerdict.FAIL
    reason = f"{answering} of {inventory.devices} answer, {expected} expected"
    return HealthRow("gpu_count", verdict, reason + (f", PCI lists {on_pci}" if lost else ""))


def check_named(named: Iterable[str], readings: Sequence[DeviceReading]) -> HealthRow:
    wanted = [uuid.strip() for uuid in named]
    answering = {reading.id.lower() for reading in readings if reading.answered}
    missing = [uuid for uuid in wanted if uuid.lower() not in answering]
    if not missing:
        reason = f"the configuration's {len(wanted)} answer"
        return HealthRow("gpus_named", HealthVerdict.PASS, reason)
    reason = f"{len(missing)} of the configuration's {len(wanted)} do not: {listed(missing)}"
    return HealthRow("gpus_named", HealthVerdict.FAIL, reason)


def _each(
    name: str,
    fields: Sequence[Field],
    judge: Callable[[dict[Field, int], MachineType], str | Complaint | None],
    readings: Sequence[DeviceReading],
    machine: MachineType,
) -> HealthRow:
    complaints: list[Complaint] = [] if readings else [(HealthVerdict.UNKNOWN, _NO_GPU)]
    for reading in readings:
        failed = reading.gaps
        gap = next((failed[field] for field in fields if field in failed), None)
        if gap is not None:
            verdict = HealthVerdict.FAIL if gap.kind in _LOST else HealthVerdict.UNKNOWN
            complaints.append((verdict, f"GPU {reading.index}: {gap.kind}, {gap.reason}"))
            continue
        wrong = judge(reading.values, machine)
        if wrong is not None:
            verdict, said = (HealthVerdict.FAIL, wrong) if isinstance(wrong, str) else wrong
            complaints.append((verdict, f"GPU {reading.index}: {said}"))
    return _row(name, complaints, f"{len(readings)} GPUs")


def _row(name: str, complaints: Iterable[Complaint], good: str) -> HealthRow:
    said = list(complaints)
    for verdict in (HealthVerdict.FAIL, HealthVerdict.UNKNOWN):
        reasons = [reason for judged, reason in said if judged is verdict]
        if reasons:
            return HealthRow(name, verdict, "; ".join(reasons))
    return HealthRow(name, HealthVerdict.PASS, "; ".join([good, *(reason for _, reason in said)]))


def _xids(
    signs: Sequence[Sign] | ReadFailure,
    readings: Sequence[DeviceReading],
    machine: MachineType,
) -> list[HealthRow]:
    """Judge what the log and the driver say; a code that no list has is a row of its own."""
    rules, failing = load_rules(), {f"xid_{code}" for code in machine.xids}
    told = [
        Sign(f"xid_{last}", f"GPU {reading.index}", rules.xids.get(last), known=rules.knows(last))
        for reading in readings
        if (last := reading.values.get(Field.XID_LAST, 0))
    ]
    complaints: list[Complaint] = [] if readings else [(HealthVerdict.UNKNOWN, _NO_GPU)]
    if isinstance(signs, ReadFailure):
        complaints.append((HealthVerdict.UNKNOWN, signs.reason))
    else:
        told += signs
    unknown: dict[str, list[str]] = {}
    for sign in sorted(set(told), key=lambda sign: (sign.name, sign.subject)):
        said = sign.name.replace("xid_", "XID ").replace("_", " ") + f" of {sign.subject}"
        if sign.cell is not None or sign.name in failing:
            complaints.append((HealthVerdict.FAIL, said))
        elif not sign.known:
            unknown.setdefault(sign.name, []).append(said)
    return [
        _row("xid", complaints, "none in the kernel's log"),
        *(
            HealthRow(name, HealthVerdict.UNKNOWN, f"{', '.join(said)}: no list has this code")
            for name, said in unknown.items()
        ),
    ]


_WAYS: Final[dict[str, Callable[[Bandwidth], int]]] = {
    "bandwidth_host_to_device": lambda bandwidth: bandwidth.to_device_bytes_per_s,
    "bandwidth_device_to_host": lambda bandwidth: bandwidth.to_host_bytes_per_s,
}


def _bandwidth(
    name: str,
    readings: Sequence[DeviceReading],
    bandwidths: Sequence[Bandwidth | ReadFailure] | None,
    machine: MachineType,
) -> HealthRow:
    if bandwidths is None:
        limit = f"; at least {machine.host_gb_per_s} GB/s is expected"
        reason = "not measured: --active does" + (limit if machine.host_gb_per_s else "")
        return HealthRow(name, HealthVerdict.UNKNOWN, reason)
    complaints: list[Complaint] = []
    measured: list[float] = []
    for reading, bandwidth in zip(readings, bandwidths, strict=True):
        if isinstance(bandwidth, ReadFailure):
            verdict = HealthVerdict.FAIL if bandwidth.kind in _LOST else HealthVerdict.UNKNOWN
            complaints.append(
                (verdict, f"GPU {reading.index}: {bandwidth.kind}, {bandwidth.reason}")
            )
            continue
        measured.append(_WAYS[name](bandwidth) / _GB)
        least = _least_gb_per_s(reading.values, machine)
        said = f"GPU {reading.index}: {measured[-1]:.1f} GB/s"
        if least is None:
            complaints.append((HealthVerdict.UNKNOWN, f"{said}, and no limit to hold it against"))
        elif measured[-1] < least:
            complaints.append((HealthVerdict.FAIL, f"{said}, at least {least:.1f} expected"))
    if not readings:
        complaints.append((HealthVerdict.UNKNOWN, _NO_GPU))
    slowest = f"{min(measured, default=0):.1f} to {max(measured, default=0):.1f} GB/s"
    return _row(name, complaints, f"{len(readings)} GPUs, {slowest}")


def _least_gb_per_s(values: dict[Field, int], machine: MachineType) -> float | None:
    if machine.host_gb_per_s is not None:
        return machine.host_gb_per_s
    lane = _LANE_GB_PER_S.get(values.get(Field.PCIE_GENERATION_MAX, 0))
    width = values.get(Field.PCIE_WIDTH_MAX)
    if lane is None or width is None or machine.host_link_percent is None:
        return None
    return lane * width * machine.host_link_percent / 100


def _nvlink(values: dict[Field, int], machine: MachineType) -> str | Complaint | None:
    """Hold links against the machine type, else against the GPU that has most up."""
    up, down = values[Field.NVLINKS_UP], values[Field.NVLINKS_DOWN]
    if not up and not machine.nvlinks:
        said = f"all of {down} links are down: none is connected, or all failed"
        return (HealthVerdict.UNKNOWN, said) if down else None
    expected = max(machine.nvlinks or 0, up + down)
    return None if up == expected else f"{up} links up, {expected} expected"


def _over(name: str, value: int, most: int | None) -> str | None:
    return f"{name} {value}, at most {most}" if most is not None and value > most else None


def _ecc(values: dict[Field, int], machine: MachineType) -> str | None:
    corrected = max(values[Field.ECC_VOLATILE_CORRECTED], values[Field.ECC_AGGREGATE_CORRECTED])
    uncorrected = values[Field.ECC_VOLATILE_UNCORRECTED]
    return _over("uncorrected", uncorrected, machine.ecc_uncorrected_at_most) or _over(
        "corrected", corrected, machine.ecc_corrected_at_most
    )


def _rows(values: dict[Field, int], machine: MachineType) -> str | None:
    if values[Field.ROWS_FAILED]:
        return "a row remap failed"
    if values[Field.ROWS_PENDING]:
        return "a row remap is pending: reset the GPU"
    return _over("rows", values[Field.ROWS_UNCORRECTED], machine.rows_uncorrected_at_most)


_THROTTLE: Final = {
    0x2: "application clocks", 0x4: "software power cap", 0x8: "hardware slowdown",
    0x10: "sync boost", 0x20: "software thermal", 0x40: "hardware thermal",
    0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip


_OPERATORS: Final = 0x2 | 0x10
"""Clocks that an operator has set."""


def _throttling(values: dict[Field, int], machine: MachineType) -> str | Complaint | None:
    bits = values[Field.THROTTLE] & ~(machine.throttle_allowed or 0)
    if not bits:
        return None
    named = [name for bit, name in _THROTTLE.items() if bits & bit]
    said = ", ".join(named) or f"reason {bits:#x}"
    return said if bits & ~_OPERATORS else (HealthVerdict.PASS, f"{said}, as an operator set them")


def _pcie(values: dict[Field, int], machine: MachineType) -> str | None:
    width = values[Field.PCIE_WIDTH]
    expected = machine.pcie_width or values[Field.PCIE_WIDTH_MAX]
    return None if width >= expected else f"{width} lanes, {expected} expected"


def _clocks(values: dict[Field, int], machine: MachineType) -> str | None:
    clock, expected = values[Field.SM_CLOCK_MAX], machine.sm_clock_max_mhz or 1
    return None if clock >= expected else f"at most {clock} MHz, {expected} expected"


def _temperature(values: dict[Field, int], machine: MachineType) -> str | None:
    most = machine.temperature_at_most_celsius
    return _over("degrees Celsius:", values[Field.TEMPERATURE], most)


_CHECKS: Final = (
    ("nvlink", (Field.NVLINKS_UP, Field.NVLINKS_DOWN), _nvlink),
    (
        "ecc",
        (
            Field.ECC_VOLATILE_CORRECTED, Field.ECC_VOLATILE_UNCORRECTED,
            Field.ECC_AGGREGATE_CORRECTED,
        ),
        _ecc,
    ),
    ("row_remap", (Field.ROWS_UNCORRECTED, Field.ROWS_PENDING, Field.ROWS_FAILED), _rows),
    ("throttling", (Field.THROTTLE,), _throttling),
    ("pcie_width", (Field.PCIE_WIDTH, Field.PCIE_WIDTH_MAX), _pcie),
    ("clocks", (Field.SM_CLOCK_MAX,), _clocks),
    ("temperature", (Field.TEMPERATURE,), _temperature),
)  # fmt: skip
