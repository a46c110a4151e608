"""Processors: machine check exceptions, which /proc/interrupts counts for every user."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from collectors.records.gap import Gap, GapKind

from .port import Count, Finding, Miss
from .sysfs import Tree

INTERRUPTS: Final = "proc/interrupts"
_LINE: Final = re.compile(r"^ *MCE:((?: +\d+)+) +Machine check", re.ASCII)
_LONGEST_LINE: Final = 1 << 16


def processor(tree: Tree) -> Iterator[Finding]:
    """Give the exceptions of all CPUs.

    A count without a class: most that a machine survives are of memory, and which part it was only
    the log tells. A kernel without the line (no x86) gives nothing.
    """
    try:
        with (tree.root / INTERRUPTS).open(encoding="ascii", errors="replace") as stream:
            while line := stream.readline(_LONGEST_LINE):
                if found := _LINE.match(line):
                    value = sum(map(int, found[1].split()))
                    yield Count("machine_check_exceptions", "cpu", value, None)
                    return
    except OSError as error:
        gap = Gap(GapKind.FAILED, f"{INTERRUPTS}: {error.strerror}")
        yield Miss("machine_check_exceptions", "cpu", gap)
