"""One look at everything that sysfs tells of this host's hardware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from .memory import memory
from .network import network
from .pcie import pcie
from .port import UNLISTED, Finding, Miss, Probe
from .power import power
from .processor import processor
from .smart import ReadSmart, read_smart
from .storage import storage
from .sysfs import Tree

MOST_FINDINGS: Final = 16_384


def probes(smart: ReadSmart = read_smart) -> Mapping[str, Probe]:
    """Give every probe by the part of the host it looks at."""
    return {
        "memory": memory,
        "processor": processor,
        "pcie": pcie,
        "storage": storage(smart),
        "power": power,
        "network": network,
    }


def look(tree: Tree, smart: ReadSmart = read_smart) -> list[Finding]:
    """Ask every probe; a folder that could not be listed is a reading that failed."""
    tree.closed.clear()
    found = [finding for probe in probes(smart).values() for finding in probe(tree)]
    closed = [Miss(UNLISTED, folder, gap) for folder, gap in tree.closed.items()]
    return [*closed, *found][:MOST_FINDINGS]
