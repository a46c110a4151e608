"""Checks of what seeing GPU calls needs: the kernel, and each capability with what it is for."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from collectors.gpu_calls.programs import ADVICE, unavailable
from transport.privileges import CAPABILITIES, process_status

from .doctor import Check, CheckVerdict, Finding

GROUP: Final = "gpu calls"


class _Need(NamedTuple):
    """Capabilities, what is had with them, and what without."""

    name: str
    capabilities: tuple[str, ...]
    with_them: str
    without: str


_NEEDS: Final = (
    _Need("counting", ("CAP_BPF", "CAP_PERFMON"), "calls are counted", "no GPU call is seen"),
    _Need(
        "containers",
        ("CAP_SYS_PTRACE",),
        "libraries of other users and inside containers are found",
        "libraries of other users and inside containers are not found",
    ),
    _Need(
        "batch jobs",
        ("CAP_DAC_READ_SEARCH", "CAP_SYS_PTRACE"),
        "a job is known by its cgroup and by its environment",
        "a job is known by its cgroup alone",
    ),
)
_ALLOW: Final = "start the agent as root or by its systemd unit, allowed {}"
_IDS: Final = "process ids"
_HOST_PIDS: Final = 0xEFFFFFFC
"""PROC_PID_INIT_INO: the inode of the first PID namespace, the same on every kernel."""


def probe_checks(
    root: Path = Path("/"), effective: int | None = None
) -> Iterator[tuple[str, str, Check]]:
    """Give the checks.

    root        stands for the file system's
    effective   capabilities, by default this process's: those that `agent run` would keep
    """
    have = int(process_status()["CapEff"], 16) if effective is None else effective
    yield GROUP, "kernel", kernel
    for need in _NEEDS:
        yield GROUP, need.name, partial(_needs, need, have)
    yield GROUP, _IDS, lambda: _process_ids(root)


def kernel(release: str | None = None) -> Finding:
    """Check that calls of GPU libraries can be probed many at once, for every process."""
    reason = unavailable(release)
    if reason is None:
        found = (
            f"Linux {release or platform.release()}: uprobe_multi, so that probes can take turns"
        )
        return Finding(GROUP, "kernel", CheckVerdict.OK, found)
    return Finding(GROUP, "kernel", CheckVerdict.ABSENT, reason, ADVICE)


def _needs(need: _Need, effective: int) -> Finding:
    missing = [one for one in need.capabilities if not effective >> CAPABILITIES[one] & 1]
    if not missing:
        return Finding(GROUP, need.name, CheckVerdict.OK, need.with_them)
    names = " and ".join(missing)
    found, do = f"without {names}: {need.without}", _ALLOW.format(names)
    return Finding(GROUP, need.name, CheckVerdict.ABSENT, found, do)


def _process_ids(root: Path) -> Finding:
    """Counts come with the host's process ids: inside a PID namespace they name nobody."""
    if (root / "proc/self/ns/pid").stat().st_ino == _HOST_PIDS:
        return Finding(GROUP, _IDS, CheckVerdict.OK, "they are the host's")
    found = "in a PID namespace of its own: counts cannot be told whose they are"
    return Finding(
        GROUP, _IDS, CheckVerdict.ABSENT, found, "share the host's PID namespace (hostPID)"
    )
