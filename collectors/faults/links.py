"""Links: the error counters of each PCIe device, and how often that of a network card was lost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from collectors.kernel_files import Tree, offered
from collectors.records.gap import Gap, GapKind

from .fault_findings import Count, FailedReading, Finding, State

PCI_DEVICES: Final = "sys/bus/pci/devices"
ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_COUNTERS: Final = (
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
"""Bridges, switches and whatever else sits in a slot."""


def pcie(tree: Tree) -> Iterator[Finding]:
    """Give the counters of every device that has them."""
    for address in filter(ADDRESS.fullmatch, tree.entries(PCI_DEVICES)):
        folder = f"{PCI_DEVICES}/{address}"
        if not tree.exists(f"{folder}/{_COUNTERS[0][1]}"):
            continue
        cell = class_of(tree, address)
        for name, file, total, is_fault in _COUNTERS:
            value = _total(tree, f"{folder}/{file}", total)
            if not isinstance(value, Gap):
                yield Count(name, address, value, cell if is_fault else None)
            elif offered(value):
                yield FailedReading(name, address, value)


def class_of(tree: Tree, address: str) -> str:
    """Give the fault class of a device by its PCI base class; a device that is gone is a board."""
    code = tree.number(f"{PCI_DEVICES}/{address}/class")
    if isinstance(code, Gap):
        return OTHER_CLASS
    if code >> 16 == _DISPLAY and tree.number(f"{PCI_DEVICES}/{address}/vendor") in _BOARD_GRAPHICS:
        return OTHER_CLASS
    return _BASE_CLASSES.get(code >> 16, OTHER_CLASS)


def _total(tree: Tree, path: str, key: str) -> int | Gap:
    text = tree.text(path)
    if isinstance(text, Gap):
        return text
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        if name == key and value.isascii() and value.isdigit():
            return int(value)
    return Gap(GapKind.FAILED, f"{path}: expected a line {key}, found none")


INTERFACES: Final = "sys/class/net"
RDMA: Final = "sys/class/infiniband"
CELL: Final = "network_switch_or_cable"
_IFF_UP: Final = 1


def network(tree: Tree) -> Iterator[Finding]:
    """Give each card's lost links; one that was switched off by hand has no link to lose."""
    for name in tree.entries(INTERFACES):
        if tree.exists(f"{INTERFACES}/{name}/device") and switched_on(tree, name) is not False:
            yield from _link(tree, name)
    for card in tree.entries(RDMA):
        for port in tree.entries(f"{RDMA}/{card}/ports"):
            file = f"{RDMA}/{card}/ports/{port}/counters/link_downed"
            yield from _count("rdma_link_downed", f"{card}/{port}", tree.number(file))


def switched_on(tree: Tree, interface: str) -> bool | None:
    """Tell whether the administrator has the interface up; None where that cannot be read."""
    flags = tree.number(f"{INTERFACES}/{interface}/flags")
    return None if isinstance(flags, Gap) else bool(flags & _IFF_UP)


def _link(tree: Tree, name: str) -> Iterator[Finding]:
    yield from _count("link_lost", name, tree.number(f"{INTERFACES}/{name}/carrier_down_count"))
    carrier = tree.number(f"{INTERFACES}/{name}/carrier")
    if not isinstance(carrier, Gap):
        # A port without a cable is no fault: the link must have been seen up.
        yield State("link_down", name, CELL, carrier == 0, "no carrier", from_start=False)
    elif offered(carrier):
        yield FailedReading("link_down", name, carrier)


def _count(name: str, subject: str, value: int | Gap) -> Iterator[Finding]:
    if not isinstance(value, Gap):
        yield Count(name, subject, value, CELL)
    elif offered(value):
        yield FailedReading(name, subject, value)
