"""Memory controllers: corrected and uncorrected errors, counted by the kernel's EDAC drivers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from collectors.records.gap import Gap

from .port import Count, Finding, Miss
from .sysfs import Tree, offered

FOLDER: Final = "sys/devices/system/edac/mc"
CORRECTED_PER_DAY: Final = 100
"""Corrected errors of one controller in 24 hours that are no fault: mcelog's limit of a socket."""
_CONTROLLER: Final = re.compile(r"mc\d{1,4}")
_COUNTERS: Final = (
    ("memory_corrected", "ce_count", CORRECTED_PER_DAY),
    ("memory_uncorrected", "ue_count", 0),
)


def memory(tree: Tree) -> Iterator[Finding]:
    """Give both counters of each controller."""
    for controller in filter(_CONTROLLER.fullmatch, tree.entries(FOLDER)):
        for name, file, per_day in _COUNTERS:
            value = tree.number(f"{FOLDER}/{controller}/{file}")
            if not isinstance(value, Gap):
                yield Count(name, controller, value, "system_memory", per_day)
            elif offered(value):
                yield Miss(name, controller, value)
