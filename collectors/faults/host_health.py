"""Rows of the node-health table for what is no GPU: memory, PCIe, drives, power, network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from collectors.devices.node_health import HealthRow, HealthVerdict

from .scan import Count, FailedReading, Finding, State

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
