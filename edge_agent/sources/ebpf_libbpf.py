"""The default loader: one CO-RE object through libbpf, its hooks chosen by what the kernel has."""

from __future__ import annotations

import platform
import re
import struct
from importlib.resources import files
from pathlib import Path
from typing import Final

from . import ebpf_layout as layout
from .bpf_maps import ArrayView, PerCpuMap, possible_cpus
from .cgroup_names import hierarchy_of
from .ebpf_limits import Limits
from .host_programs import HostPrograms
from .host_ticks import TimerTicks
from .libbpf import BpfObject, available, kernel_has_hook
from .port import Absence, SourceUnavailable

VMLINUX: Final = Path("/sys/kernel/btf/vmlinux")
_LEAST_KERNEL: Final = (5, 19)
_ABSOLUTE_TIMERS: Final = (6, 4)
_TABLES: Final = {
    "cgroups": (8, layout.CGROUP_FIELDS),
    "block_cgroups": (8, len(layout.BLOCK_CGROUP_COLUMNS)),
    "devices": (4, len(layout.DEVICE_COLUMNS)),
    "peers": (16, len(layout.PEER_COLUMNS)),
}


def kernel_version(release: str | None = None) -> tuple[int, int]:
    """Give (major, minor) of the running kernel."""
    numbers = re.findall(r"\d+", release or platform.release())
    return int(numbers[0]), int(numbers[1])


def unavailable() -> str | None:
    """Say in one line why this loader cannot serve here, or None."""
    if not VMLINUX.exists():
        return f"the kernel has no BTF: {VMLINUX} does not exist"
    if kernel_version() < _LEAST_KERNEL:
        return f"expected Linux 5.19 or later, this is {platform.release()}"
    return available()


def load(limits: Limits) -> HostPrograms:
    """Load and attach everything that this kernel has. Raises SourceUnavailable."""
    image = files("bpf").joinpath("objects/host.bpf.o").read_bytes()
    cpus = possible_cpus()
    if cpus > layout.MAX_CPUS:
        raise SourceUnavailable(f"expected at most {layout.MAX_CPUS} CPUs, got {cpus}")
    absent = [
        Absence(program, f"this kernel has no tracepoint {hook}")
        for program, hook in layout.PROGRAMS.items()
        if not kernel_has_hook(hook)
    ]
    cpu_root, block_root = hierarchy_of("cpu"), hierarchy_of("blkio", "io")
    program = BpfObject(image)
    try:
        program.disable([a.source for a in absent])
        for name in _TABLES:
            program.set_max_entries(name, getattr(limits, name))
        program.set_initial(".rodata.settings", _settings(limits, cpus, cpu_root.unified))
        program.load()
        loaded = _maps(program, cpus, limits)
        loaded.absent = absent
        loaded.cgroup_root, loaded.block_root = cpu_root.path, block_root.path
        loaded.make_other_rows()
        missing = {a.source for a in absent}
        for name in layout.PROGRAMS:
            if name not in missing:
                program.attach(name)
        program.run("start_ticks")
    except BaseException:
        program.close()
        raise
    return loaded


def _settings(limits: Limits, cpus: int, unified: bool) -> bytes:
    """Lay out `struct settings`."""
    absolute = limits.absolute_timer and kernel_version() >= _ABSOLUTE_TIMERS
    mask = (1 << limits.timed_hits_log2) - 1
    return struct.pack("=QQIIII", limits.tick_ns, mask, cpus, absolute, unified, 0)


def _maps(program: BpfObject, cpus: int, limits: Limits) -> HostPrograms:
    fd = program.map_fd
    snapshots = ArrayView(fd("snapshots"), layout.SNAPSHOT_SLOTS, layout.SNAPSHOT_FIELDS)
    ticks = TimerTicks(snapshots, ArrayView(fd("ticks"), 1, layout.TICK_STATE_FIELDS), cpus)

    def close() -> None:
        program.close()
        ticks.close()

    return HostPrograms(
        loader="libbpf",
        cpu_states=PerCpuMap(fd("cpu_states"), 4, layout.CPU_STATE_FIELDS, cpus),
        ticks=ticks,
        tables={
            name: PerCpuMap(fd(name), key_bytes, fields, cpus, getattr(limits, name))
            for name, (key_bytes, fields) in _TABLES.items()
        },
        close=close,
    )
