"""One look at everything that sysfs tells of this host's hardware, and NVMe drives' SMART page.

The page takes CAP_SYS_ADMIN, which `agent health` has as root. Source: NVM Express base
specification 2.0, figures 202 and 207; linux/nvme_ioctl.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from collectors.bpf.system_calls import structure_fields
from collectors.devices.node_health import HealthRow, HealthVerdict
from collectors.kernel_files import Tree, offered
from collectors.records.basics import FailureKind, ReadFailure


@dataclass(frozen=True, slots=True)
class Count:
    """A counter of errors; no `cell`: never a fault. `per_day` new ones a day are no fault yet."""

    name: str
    subject: str
    value: int
    cell: str | None
    per_day: int = 0


@dataclass(frozen=True, slots=True)
class State:
    """How a device stands; `from_start`: a fault also where it stood before the agent began."""

    name: str
    subject: str
    cell: str
    bad: bool
    detail: str
    from_start: bool = True


@dataclass(frozen=True, slots=True)
class FailedReading:
    name: str
    subject: str
    gap: ReadFailure


UNLISTED = "folder"
"""The name of a `FailedReading` of a whole folder: what is not found in it may be there."""

Finding = Count | State | FailedReading
Probe = Callable[[Tree], Iterator[Finding]]


PCI_DEVICES: Final = "sys/bus/pci/devices"
ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PCIE_COUNTERS: Final = (
    ("pcie_fatal", "aer_dev_fatal", "TOTAL_ERR_FATAL", True),
    ("pcie_nonfatal", "aer_dev_nonfatal", "TOTAL_ERR_NONFATAL", True),
    ("pcie_corrected", "aer_dev_correctable", "TOTAL_ERR_COR", False),
)
"""Corrected errors come by the thousand from a link that works: counted here, never a fault."""
_BASE_CLASSES: Final = {0x01: "ssd", 0x02: "nic", 0x03: "faulty_gpu", 0x12: "faulty_gpu"}
_DISPLAY: Final = 0x03
_BOARD_GRAPHICS: Final = (0x1A03, 0x102B)
"""ASPEED and Matrox: the display of a board's management controller is no GPU."""
OTHER_CLASS: Final = "io_expansion_board"


def pcie(tree: Tree) -> Iterator[Finding]:
    for address in filter(ADDRESS.fullmatch, tree.entries(PCI_DEVICES)):
        folder = f"{PCI_DEVICES}/{address}"
        if not tree.exists(f"{folder}/{_PCIE_COUNTERS[0][1]}"):
            continue
        cell = class_of(tree, address)
        for name, file, total, is_fault in _PCIE_COUNTERS:
            value = _total(tree, f"{folder}/{file}", total)
            yield from _count(name, address, value, cell if is_fault else None)


def class_of(tree: Tree, address: str) -> str:
    """Give the fault class of a device by its PCI base class; a device that is gone is a board."""
    code = tree.number(f"{PCI_DEVICES}/{address}/class")
    if isinstance(code, ReadFailure):
        return OTHER_CLASS
    if code >> 16 == _DISPLAY and tree.number(f"{PCI_DEVICES}/{address}/vendor") in _BOARD_GRAPHICS:
        return OTHER_CLASS
    return _BASE_CLASSES.get(code >> 16, OTHER_CLASS)


def _total(tree: Tree, path: str, key: str) -> int | ReadFailure:
    text = tree.text(path)
    if isinstance(text, ReadFailure):
        return text
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name == key and value.isascii() and value.isdigit():
            return int(value)
    return ReadFailure(FailureKind.FAILED, f"{path}: expected a line {key}, found none")


INTERFACES: Final = "sys/class/net"
RDMA: Final = "sys/class/infiniband"
_NETWORK: Final = "network_switch_or_cable"
_IFF_UP: Final = 1


def network(tree: Tree) -> Iterator[Finding]:
    for name in tree.entries(INTERFACES):
        if tree.exists(f"{INTERFACES}/{name}/device") and switched_on(tree, name) is not False:
            yield from _link(tree, name)
    for card in tree.entries(RDMA):
        for port in tree.entries(f"{RDMA}/{card}/ports"):
            file = f"{RDMA}/{card}/ports/{port}/counters/link_downed"
            yield from _count("rdma_link_downed", f"{card}/{port}", tree.number(file), _NETWORK)


def switched_on(tree: Tree, interface: str) -> bool | None:
    """Tell whether the administrator has the interface up; None where that cannot be read."""
    flags = tree.number(f"{INTERFACES}/{interface}/flags")
    return None if isinstance(flags, ReadFailure) else bool(flags & _IFF_UP)


def _link(tree: Tree, name: str) -> Iterator[Finding]:
    lost = tree.number(f"{INTERFACES}/{name}/carrier_down_count")
    yield from _count("link_lost", name, lost, _NETWORK)
    carrier = tree.number(f"{INTERFACES}/{name}/carrier")
    if not isinstance(carrier, ReadFailure):
        # A port without a cable is no fault: the link must have been seen up.
        yield State("link_down", name, _NETWORK, carrier == 0, "no carrier", from_start=False)
    elif offered(carrier):
        yield FailedReading("link_down", name, carrier)


def _count(
    name: str, subject: str, value: int | ReadFailure, cell: str | None, per_day: int = 0
) -> Iterator[Finding]:
    if not isinstance(value, ReadFailure):
        yield Count(name, subject, value, cell, per_day)
    elif offered(value):
        yield FailedReading(name, subject, value)


PAGE_BYTES: Final = 512
_GET_LOG_PAGE: Final = 0x02
_SMART_LOG: Final = 0x02
_WHOLE_CONTROLLER: Final = 0xFFFFFFFF
ADMIN_COMMAND: Final = 0xC0484E41
"""_IOWR('N', 0x41, struct nvme_admin_cmd), of 72 bytes."""
_WARNINGS: Final = {
    0x01: "spare below its threshold", 0x04: "reliability degraded", 0x08: "read-only",
    0x10: "backup of volatile memory failed", 0x20: "persistent memory unreliable",
}  # fmt: skip
"""Bits of the critical warning. 0x02, too hot or too cold, is not the drive's own fault."""


class AdminCommand(ctypes.Structure):
    _fields_ = structure_fields(
        "opcode:8 flags:8 reserved:16 namespace:32 cdw2:32 cdw3:32 metadata address "
        "metadata_bytes:32 data_bytes:32 cdw10:32 cdw11:32 cdw12:32 cdw13:32 cdw14:32 cdw15:32 "
        "timeout_ms:32 result:32"
    )


@dataclass(frozen=True, slots=True)
class Smart:
    warnings: tuple[str, ...]
    media_errors: int


ReadSmart = Callable[[Path], Smart | ReadFailure]


def read_smart(device: Path) -> Smart | ReadFailure:
    """Ask /dev/nvme0 for its page; by the kernel's own time limit: a shorter one resets it."""
    page = ctypes.create_string_buffer(PAGE_BYTES)
    command = get_smart_page(ctypes.addressof(page))
    try:
        fd = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = fcntl.ioctl(fd, ADMIN_COMMAND, command)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return ReadFailure(FailureKind.UNSUPPORTED, f"no {device}")
    except PermissionError:
        closed = f"{device}: not allowed (root alone reads SMART)"
        return ReadFailure(FailureKind.NO_PERMISSION, closed)
    except OSError as error:
        return ReadFailure(FailureKind.FAILED, f"{device}: {error.strerror}")
    if status:
        return ReadFailure(FailureKind.FAILED, f"{device}: expected NVMe status 0, got {status:#x}")
    return parse_page(page.raw)


def get_smart_page(address: int) -> AdminCommand:
    """Build the command that reads the page into 512 bytes at an address."""
    words = PAGE_BYTES // 4
    return AdminCommand(
        opcode=_GET_LOG_PAGE,
        namespace=_WHOLE_CONTROLLER,
        address=address,
        data_bytes=PAGE_BYTES,
        cdw10=_SMART_LOG | (words - 1) << 16,
    )


def parse_page(page: bytes) -> Smart:
    """Read what is of use. Raises ValueError for another length."""
    if len(page) != PAGE_BYTES:
        raise ValueError(f"a SMART page is {PAGE_BYTES} bytes, got {len(page)}")
    warnings = tuple(words for bit, words in _WARNINGS.items() if page[0] & bit)
    return Smart(warnings, int.from_bytes(page[160:176], "little"))


_NVME_FOLDER: Final = "sys/class/nvme"
_SSD: Final = "ssd"
_NVME_CONTROLLER: Final = re.compile(r"nvme\d{1,4}")
_DEAD: Final = "dead"
_LIVE: Final = "live"


def storage(tree: Tree, smart: ReadSmart = read_smart) -> Iterator[Finding]:
    """Look at all drives on PCIe; `smart` asks a drive for its page."""
    for name in filter(_NVME_CONTROLLER.fullmatch, tree.entries(_NVME_FOLDER)):
        if tree.text(f"{_NVME_FOLDER}/{name}/transport") == "pcie":
            yield from _drive(tree, name, smart)


def _drive(tree: Tree, name: str, smart: ReadSmart) -> Iterator[Finding]:
    state = tree.text(f"{_NVME_FOLDER}/{name}/state")
    if isinstance(state, ReadFailure):
        if offered(state):
            yield FailedReading("nvme_dead", name, state)
        return
    yield State("nvme_dead", name, _SSD, state == _DEAD, state[:40])
    if state != _LIVE:  # a command to a controller that resets would wait for it
        gone = ReadFailure(FailureKind.UNPLUGGED, f"{name} is {state[:40]}")
        yield FailedReading("nvme_critical_warning", name, gone)
        return
    page = smart(tree.root / "dev" / name)
    if isinstance(page, ReadFailure):
        if offered(page):
            yield FailedReading("nvme_critical_warning", name, page)
        return
    said = ", ".join(page.warnings) or "no critical warning"
    yield State("nvme_critical_warning", name, _SSD, bool(page.warnings), said)
    yield Count("nvme_media_errors", name, page.media_errors, _SSD)


SUPPLIES: Final = "sys/class/power_supply"
CHIPS: Final = "sys/class/hwmon"
_HEALTHY: Final = frozenset({"Good", "Unknown", "Cold", "Cool", "Warm", "Calibration required"})
_FAULT: Final = re.compile(r"(?:fan|temp|in|curr|power)\d{1,3}_fault")
_ALARM: Final = re.compile(r"(?:in|curr|power)\d{1,3}(?:_(?:l?crit|min|max|input))?_alarm")
_PSU_CHIPS: Final = re.compile(
    r"cffps\d?|crps|fsg032|pfe[13]\d{3}|d[13]u\w*|dps920ab|dps800|ipsps\d?|y[hm]\d{4}e"
)
"""Names that PMBus drivers of power supplies give their chips: there an alarm is a fault, on a
board's own monitor it is often an input that nobody connected."""
_CELLS: Final = {
    "nvme": "ssd", "drivetemp": "ssd", "coretemp": "cpu", "k10temp": "cpu", "zenpower": "cpu",
    "jc42": "system_memory", "spd5118": "system_memory",
    "amdgpu": "gpu_thermal_interface_and_sensor", "nouveau": "gpu_thermal_interface_and_sensor",
    "xe": "gpu_thermal_interface_and_sensor", "i915": "gpu_thermal_interface_and_sensor",
}  # fmt: skip
_BOARD: Final = "server_chassis"


def power(tree: Tree) -> Iterator[Finding]:
    names = tree.entries(SUPPLIES)
    kinds = {name: tree.text(f"{SUPPLIES}/{name}/type") for name in names}
    portable = "Battery" in kinds.values()
    for name, kind in kinds.items():
        folder = f"{SUPPLIES}/{name}"
        yield from _read(tree, f"{folder}/health", "power_supply_health", name)
        if kind == "Mains" and not portable:  # who unplugs a laptop has no fault
            yield from _read(tree, f"{folder}/online", "power_supply_offline", name)
    for chip in tree.entries(CHIPS):
        yield from _chip(tree, chip)


def _read(tree: Tree, path: str, name: str, subject: str) -> Iterator[Finding]:
    found = tree.text(path)
    if isinstance(found, ReadFailure):
        if offered(found):
            yield FailedReading(name, subject, found)
        return
    if name == "power_supply_offline":
        yield State(name, subject, "power_supply", found == "0", "offline", from_start=False)
    else:
        yield State(name, subject, "power_supply", found not in _HEALTHY, found[:40])


def _chip(tree: Tree, chip: str) -> Iterator[Finding]:
    named = tree.text(f"{CHIPS}/{chip}/name")
    label = chip if isinstance(named, ReadFailure) else named[:40]
    supply = _PSU_CHIPS.fullmatch(label) is not None
    for file in tree.entries(f"{CHIPS}/{chip}"):
        is_fault = _FAULT.fullmatch(file) is not None
        if not is_fault and not (supply and _ALARM.fullmatch(file)):
            continue
        subject = f"{chip}/{label}/{file}"
        bad = tree.number(f"{CHIPS}/{chip}/{file}")
        if isinstance(bad, ReadFailure):
            yield FailedReading("sensor_fault", subject, bad)
            continue
        cell = "power_supply" if supply else _CELLS.get(label, _BOARD)
        # A header without a fan or diode reports a fault for ever: it must have been seen good.
        yield State("sensor_fault", subject, cell, bad != 0, file, from_start=supply)


INTERRUPTS: Final = "proc/interrupts"
_LINE: Final = re.compile(r"^ *MCE:((?: +\d+)+) +Machine check", re.ASCII)
_LONGEST_LINE: Final = 1 << 16


def processor(tree: Tree) -> Iterator[Finding]:
    """Give all CPUs' exceptions, without a class: which part it was, only the log tells."""
    try:
        with (tree.root / INTERRUPTS).open(encoding="ascii", errors="replace") as stream:
            while line := stream.readline(_LONGEST_LINE):
                if found := _LINE.match(line):
                    value = sum(map(int, found[1].split()))
                    yield Count("machine_check_exceptions", "cpu", value, None)
                    return
    except OSError as error:
        gap = ReadFailure(FailureKind.FAILED, f"{INTERRUPTS}: {error.strerror}")
        yield FailedReading("machine_check_exceptions", "cpu", gap)


_EDAC_FOLDER: Final = "sys/devices/system/edac/mc"
CORRECTED_PER_DAY: Final = 100
"""Corrected errors of one controller in 24 hours that are no fault: mcelog's limit of a socket."""
_EDAC_CONTROLLER: Final = re.compile(r"mc\d{1,4}")
_EDAC_COUNTERS: Final = (
    ("memory_corrected", "ce_count", CORRECTED_PER_DAY),
    ("memory_uncorrected", "ue_count", 0),
)


def memory(tree: Tree) -> Iterator[Finding]:
    for controller in filter(_EDAC_CONTROLLER.fullmatch, tree.entries(_EDAC_FOLDER)):
        for name, file, per_day in _EDAC_COUNTERS:
            value = tree.number(f"{_EDAC_FOLDER}/{controller}/{file}")
            yield from _count(name, controller, value, "system_memory", per_day)


MOST_FINDINGS: Final = 16_384


def probes(smart: ReadSmart = read_smart) -> Mapping[str, Probe]:
    """Give every probe by the part of the host it looks at."""
    return {
        "memory": memory,
        "processor": processor,
        "pcie": pcie,
        "storage": partial(storage, smart=smart),
        "power": power,
        "network": network,
    }


def look(tree: Tree, smart: ReadSmart = read_smart) -> list[Finding]:
    """Ask every probe; a folder that could not be listed is a reading that failed."""
    tree.closed.clear()
    found = [finding for probe in probes(smart).values() for finding in probe(tree)]
    closed = [FailedReading(UNLISTED, folder, gap) for folder, gap in tree.closed.items()]
    return [*closed, *found][:MOST_FINDINGS]


_FATAL_COUNTS: Final = frozenset({"memory_uncorrected", "pcie_fatal"})
"""Since boot one of these is one too many. Others count over the life of a device, or come from
devices that are found at boot."""
_ROWS: Final = (
    ("memory", "host_memory"),
    ("pcie", "pcie_errors"),
    ("storage", "storage"),
    ("power", "power"),
    ("network", "network_links"),
)


def check_host(found: Mapping[str, Sequence[Finding]]) -> list[HealthRow]:
    """Judge each part of a host; what was not read never passes."""
    return [_row(check, found.get(part, ())) for part, check in _ROWS]


def _row(check: str, found: Sequence[Finding]) -> HealthRow:
    failed = [reason for finding in found if (reason := _complaint(finding))]
    if failed:
        return HealthRow(check, HealthVerdict.FAIL, "; ".join(failed))
    missed = [finding for finding in found if isinstance(finding, FailedReading)]
    if missed:
        return HealthRow(
            check, HealthVerdict.UNKNOWN, f"{missed[0].subject}: {missed[0].gap.reason}"
        )
    if not found:
        return HealthRow(check, HealthVerdict.UNKNOWN, "nothing to read here")
    return HealthRow(
        check, HealthVerdict.PASS, f"{len({finding.subject for finding in found})} devices"
    )


def _complaint(found: Finding) -> str | None:
    if isinstance(found, State) and found.bad and found.from_start:
        return f"{found.subject}: {found.name}, {found.detail}"
    if isinstance(found, Count) and found.name in _FATAL_COUNTS and found.value:
        return f"{found.subject}: {found.value} {found.name} since boot"
    return None
