"""NVMe drives: the controller's state for everyone, its SMART page for those who may read it.

The kernel gives it to a process with CAP_SYS_ADMIN alone, which the agent does not keep: it serves
`agent health` as root. Source: NVM Express base specification 2.0, figures 202 and 207;
linux/nvme_ioctl.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collectors.kernel_files import Tree, offered
from collectors.records.gap import Gap, GapKind

from .fault_findings import Count, FailedReading, Finding, Probe, State

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
    """struct nvme_admin_cmd."""

    _fields_ = (
        ("opcode", ctypes.c_uint8), ("flags", ctypes.c_uint8), ("reserved", ctypes.c_uint16),
        ("namespace", ctypes.c_uint32), ("cdw2", ctypes.c_uint32), ("cdw3", ctypes.c_uint32),
        ("metadata", ctypes.c_uint64), ("address", ctypes.c_uint64),
        ("metadata_bytes", ctypes.c_uint32), ("data_bytes", ctypes.c_uint32),
        ("cdw10", ctypes.c_uint32), ("cdw11", ctypes.c_uint32), ("cdw12", ctypes.c_uint32),
        ("cdw13", ctypes.c_uint32), ("cdw14", ctypes.c_uint32), ("cdw15", ctypes.c_uint32),
        ("timeout_ms", ctypes.c_uint32), ("result", ctypes.c_uint32),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Smart:
    """What a drive says of itself.

    warnings       critical warnings that are faults, in words
    media_errors   unrecovered data errors over the drive's life
    """

    warnings: tuple[str, ...]
    media_errors: int


ReadSmart = Callable[[Path], Smart | Gap]


def read_smart(device: Path) -> Smart | Gap:
    """Ask a drive for its page; `device` is its character device, /dev/nvme0.

    The time limit is the kernel's own: a shorter one would have it reset the controller.
    """
    page = ctypes.create_string_buffer(PAGE_BYTES)
    command = get_smart_page(ctypes.addressof(page))
    try:
        fd = os.open(device, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = fcntl.ioctl(fd, ADMIN_COMMAND, command)
        finally:
            os.close(fd)
    except FileNotFoundError:
        return Gap(GapKind.UNSUPPORTED, f"no {device}")
    except PermissionError:
        return Gap(GapKind.NO_PERMISSION, f"{device}: not allowed (root alone reads SMART)")
    except OSError as error:
        return Gap(GapKind.FAILED, f"{device}: {error.strerror}")
    if status:
        return Gap(GapKind.FAILED, f"{device}: expected NVMe status 0, got {status:#x}")
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


FOLDER: Final = "sys/class/nvme"
CELL: Final = "ssd"
_CONTROLLER: Final = re.compile(r"nvme\d{1,4}")
_DEAD: Final = "dead"
_LIVE: Final = "live"


def storage(smart: ReadSmart = read_smart) -> Probe:
    """Give the probe of all drives on PCIe; `smart` asks a drive for its page."""

    def probe(tree: Tree) -> Iterator[Finding]:
        for name in filter(_CONTROLLER.fullmatch, tree.entries(FOLDER)):
            if tree.text(f"{FOLDER}/{name}/transport") == "pcie":
                yield from _drive(tree, name, smart)

    return probe


def _drive(tree: Tree, name: str, smart: ReadSmart) -> Iterator[Finding]:
    state = tree.text(f"{FOLDER}/{name}/state")
    if isinstance(state, Gap):
        if offered(state):
            yield FailedReading("nvme_dead", name, state)
        return
    yield State("nvme_dead", name, CELL, state == _DEAD, state[:40])
    if state != _LIVE:  # a command to a controller that resets would wait for it
        yield FailedReading(
            "nvme_critical_warning", name, Gap(GapKind.UNPLUGGED, f"{name} is {state[:40]}")
        )
        return
    page = smart(tree.root / "dev" / name)
    if isinstance(page, Gap):
        if offered(page):
            yield FailedReading("nvme_critical_warning", name, page)
        return
    said = ", ".join(page.warnings) or "no critical warning"
    yield State("nvme_critical_warning", name, CELL, bool(page.warnings), said)
    yield Count("nvme_media_errors", name, page.media_errors, CELL)
