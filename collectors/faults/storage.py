"""NVMe drives: the controller's state for everyone, its SMART page for those who may read it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from collectors.records.gap import Gap, GapKind

from .fault_findings import Count, Finding, Miss, Probe, State
from .smart import ReadSmart, read_smart
from .sysfs import Tree, offered

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
            yield Miss("nvme_dead", name, state)
        return
    yield State("nvme_dead", name, CELL, state == _DEAD, state[:40])
    if state != _LIVE:  # a command to a controller that resets would wait for it
        yield Miss("nvme_critical_warning", name, Gap(GapKind.UNPLUGGED, f"{name} is {state[:40]}"))
        return
    page = smart(tree.root / "dev" / name)
    if isinstance(page, Gap):
        if offered(page):
            yield Miss("nvme_critical_warning", name, page)
        return
    said = ", ".join(page.warnings) or "no critical warning"
    yield State("nvme_critical_warning", name, CELL, bool(page.warnings), said)
    yield Count("nvme_media_errors", name, page.media_errors, CELL)
