"""Network: how often the link of a network card was lost, and whether it is down now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from collectors.records.gap import Gap

from .fault_findings import Count, Finding, Miss, State
from .sysfs import Tree, offered

FOLDER: Final = "sys/class/net"
RDMA: Final = "sys/class/infiniband"
CELL: Final = "network_switch_or_cable"
_IFF_UP: Final = 1


def network(tree: Tree) -> Iterator[Finding]:
    """Give each card's lost links; one that was switched off by hand has no link to lose."""
    for name in tree.entries(FOLDER):
        if tree.exists(f"{FOLDER}/{name}/device") and switched_on(tree, name) is not False:
            yield from _link(tree, name)
    for card in tree.entries(RDMA):
        for port in tree.entries(f"{RDMA}/{card}/ports"):
            file = f"{RDMA}/{card}/ports/{port}/counters/link_downed"
            yield from _count("rdma_link_downed", f"{card}/{port}", tree.number(file))


def switched_on(tree: Tree, interface: str) -> bool | None:
    """Tell whether the administrator has the interface up; None where that cannot be read."""
    flags = tree.number(f"{FOLDER}/{interface}/flags")
    return None if isinstance(flags, Gap) else bool(flags & _IFF_UP)


def _link(tree: Tree, name: str) -> Iterator[Finding]:
    yield from _count("link_lost", name, tree.number(f"{FOLDER}/{name}/carrier_down_count"))
    carrier = tree.number(f"{FOLDER}/{name}/carrier")
    if not isinstance(carrier, Gap):
        # A port without a cable is no fault: the link must have been seen up.
        yield State("link_down", name, CELL, carrier == 0, "no carrier", from_start=False)
    elif offered(carrier):
        yield Miss("link_down", name, carrier)


def _count(name: str, subject: str, value: int | Gap) -> Iterator[Finding]:
    if not isinstance(value, Gap):
        yield Count(name, subject, value, CELL)
    elif offered(value):
        yield Miss(name, subject, value)
