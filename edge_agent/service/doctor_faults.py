"""Checks of the hardware-fault source, part by part; they only read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from collectors.faults.fault_findings import Count, Miss, Probe, State
from collectors.faults.nvme import ReadSmart, read_smart
from collectors.faults.scan import probes
from collectors.kernel_files import Tree
from collectors.kernel_log import KMSG, KernelLog, log_gap
from collectors.records.gap import Gap, GapKind
from edge_agent.local.local_rows import clean_name

from .doctor import Check, CheckVerdict
from .doctor import Finding as Line

GROUP: Final = "faults"
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
    yield GROUP, "kernel_log", lambda: _log(log)
    for name, probe in probes(smart).items():
        yield GROUP, name, partial(_part, name, probe, tree)


def _log(path: Path) -> Line:
    try:
        KernelLog(path, from_now=True).close()
    except OSError as error:
        reason = log_gap(path, error).reason
        return Line(GROUP, "kernel_log", CheckVerdict.ABSENT, reason, _NO_LOG)
    found = f"{path}: XID, AER, machine checks, links, disks, file systems"
    return Line(GROUP, "kernel_log", CheckVerdict.OK, found)


def _part(name: str, probe: Probe, tree: Tree) -> Line:
    found = list(probe(tree))
    read = sorted({one.name for one in found if isinstance(one, Count | State)})
    missed = [one for one in found if isinstance(one, Miss)]
    if missed:
        return _missed(name, missed, read)
    if not read:
        return Line(GROUP, name, CheckVerdict.ABSENT, "nothing to read here", _PARTS[name])
    subjects = len({one.subject for one in found})
    return Line(GROUP, name, CheckVerdict.OK, f"{', '.join(read)} of {subjects}")


def _missed(name: str, missed: Sequence[Miss], read: Sequence[str]) -> Line:
    gap: Gap = missed[0].gap
    also = f"; read: {', '.join(read)}" if read else ""
    reason = clean_name(f"{len(missed)} not read, as {gap.reason}{also}")
    denied = gap.kind is GapKind.NO_PERMISSION
    do = _NO_SMART if denied and name == "storage" else f"look at {missed[0].subject}"
    return Line(GROUP, name, CheckVerdict.ABSENT, reason, do)
