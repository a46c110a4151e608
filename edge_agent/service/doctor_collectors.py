"""Checks of what collectors need: the hardware-fault source part by part, and seeing GPU calls."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from collectors.faults.fault_findings import Count, FailedReading, Probe, State
from collectors.faults.nvme import ReadSmart, read_smart
from collectors.faults.scan import probes
from collectors.gpu_calls.loaders import Loader, choose
from collectors.gpu_calls.probe_table import ProbeTable
from collectors.gpu_calls.programs import ADVICE, unavailable
from collectors.kernel_files import Tree
from collectors.kernel_log import KMSG, KernelLog, log_gap
from collectors.port import SourceUnavailable
from collectors.records.gap import Gap, GapKind
from edge_agent.local.local_rows import clean_name
from transport.process.doctor_findings import LONGEST, Check, CheckVerdict, Finding
from transport.process.printable import printable
from transport.process.privileges import CAPABILITIES, process_status

from .doctor import source_advice

FAULTS: Final = "faults"
_PARTS: Final = {
    "memory": "nothing in a virtual machine; else load the EDAC driver of this memory controller",
    "processor": "nothing: this kernel counts no machine checks (it is no x86, or built without)",
    "pcie": "nothing in a virtual machine; else have the firmware leave AER to Linux",
    "storage": "nothing, unless this host has NVMe drives: then load their driver",
    "power": "nothing in a virtual machine; else load the hwmon driver of its power supplies",
    "network": "nothing, unless this host has network cards: then load their driver",
}
_NO_SMART: Final = "run `pointillist agent health` as root: it reads the SMART pages"
_NO_LOG: Final = (
    "start the agent as root or by its systemd unit (CAP_SYSLOG), or kernel.dmesg_restrict=0"
)


def fault_checks(
    root: Path = Path("/"), log: Path = KMSG, smart: ReadSmart = read_smart
) -> Iterator[tuple[str, str, Check]]:
    """Give the checks; tests have a file system and a log of their own."""
    tree = Tree(root)
    yield FAULTS, "kernel_log", lambda: _log(log)
    for name, probe in probes(smart).items():
        yield FAULTS, name, partial(_part, name, probe, tree)


def _log(path: Path) -> Finding:
    try:
        KernelLog(path, from_now=True).close()
    except OSError as error:
        reason = log_gap(path, error).reason
        return Finding(FAULTS, "kernel_log", CheckVerdict.ABSENT, reason, _NO_LOG)
    found = f"{path}: XID, AER, machine checks, links, disks, file systems"
    return Finding(FAULTS, "kernel_log", CheckVerdict.OK, found)


def _part(name: str, probe: Probe, tree: Tree) -> Finding:
    found = list(probe(tree))
    read = sorted({finding.name for finding in found if isinstance(finding, Count | State)})
    missed = [finding for finding in found if isinstance(finding, FailedReading)]
    if missed:
        return _missed(name, missed, read)
    if not read:
        return Finding(FAULTS, name, CheckVerdict.ABSENT, "nothing to read here", _PARTS[name])
    subjects = len({finding.subject for finding in found})
    return Finding(FAULTS, name, CheckVerdict.OK, f"{', '.join(read)} of {subjects}")


def _missed(name: str, missed: Sequence[FailedReading], read: Sequence[str]) -> Finding:
    gap: Gap = missed[0].gap
    also = f"; read: {', '.join(read)}" if read else ""
    reason = clean_name(f"{len(missed)} not read, as {gap.reason}{also}")
    denied = gap.kind is GapKind.NO_PERMISSION
    do = _NO_SMART if denied and name == "storage" else f"look at {missed[0].subject}"
    return Finding(FAULTS, name, CheckVerdict.ABSENT, reason, do)


GPU_CALLS: Final = "gpu calls"


class _Need(NamedTuple):
    """Capabilities, what is had with them, and what without."""

    name: str
    capabilities: tuple[str, ...]
    with_them: str
    without: str


_COUNTING: Final = _Need(
    "counting",
    ("CAP_BPF", "CAP_PERFMON"),
    "calls are counted",
    "no GPU call is seen, other sources go on",
)
_NEEDS: Final = (
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


def load_probes(loader: str = Loader.AUTO) -> str:
    """Load what counts GPU calls, let it go, and name the loader. Raises SourceUnavailable."""
    chosen = choose(ProbeTable.load(), Loader(loader))
    chosen.programs.try_out(dear=True)
    return chosen.loader


def probe_checks(
    root: Path = Path("/"),
    effective: int | None = None,
    load: Callable[[], str] = load_probes,
) -> Iterator[tuple[str, str, Check]]:
    """Give the checks.

    root        stands for the file system's
    effective   capabilities, by default this process's: those that `agent run` would keep
    load        tries the programs and names their loader; raises SourceUnavailable
    """
    have = int(process_status()["CapEff"], 16) if effective is None else effective
    yield GPU_CALLS, "kernel", kernel
    yield GPU_CALLS, _COUNTING.name, lambda: _counting(have, load)
    for need in _NEEDS:
        yield GPU_CALLS, need.name, partial(_needs, need, have)
    yield GPU_CALLS, _IDS, lambda: _process_ids(root)


def kernel(release: str | None = None) -> Finding:
    """Check that calls of GPU libraries can be probed many at once, for every process."""
    reason = unavailable(release)
    if reason is None:
        found = (
            f"Linux {release or platform.release()}: uprobe_multi, so that probes can take turns"
        )
        return Finding(GPU_CALLS, "kernel", CheckVerdict.OK, found)
    return Finding(GPU_CALLS, "kernel", CheckVerdict.ABSENT, reason, ADVICE)


def _needs(need: _Need, effective: int) -> Finding:
    missing = [
        capability
        for capability in need.capabilities
        if not effective >> CAPABILITIES[capability] & 1
    ]
    if not missing:
        return Finding(GPU_CALLS, need.name, CheckVerdict.OK, need.with_them)
    names = " and ".join(missing)
    found, do = f"without {names}: {need.without}", _ALLOW.format(names)
    return Finding(GPU_CALLS, need.name, CheckVerdict.ABSENT, found, do)


def _counting(effective: int, load: Callable[[], str]) -> Finding:
    """Check that the programs load: no version of a kernel says so."""
    found = _needs(_COUNTING, effective)
    if found.verdict is not CheckVerdict.OK:
        return found
    try:
        return replace(found, found=f"{found.found}: the programs load here, by {load()}")
    except SourceUnavailable as error:
        line = printable(f"{error}: {_COUNTING.without}")[:LONGEST]
        do = source_advice("probes", line)
        return Finding(GPU_CALLS, _COUNTING.name, CheckVerdict.ABSENT, line, do)


def _process_ids(root: Path) -> Finding:
    """Counts come with the host's process ids: inside a PID namespace they name nobody."""
    if (root / "proc/self/ns/pid").stat().st_ino == _HOST_PIDS:
        return Finding(GPU_CALLS, _IDS, CheckVerdict.OK, "they are the host's")
    found = "in a PID namespace of its own: counts cannot be told whose they are"
    return Finding(
        GPU_CALLS, _IDS, CheckVerdict.ABSENT, found, "share the host's PID namespace (hostPID)"
    )
