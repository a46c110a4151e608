"""The default loader: one CO-RE object through libbpf, its hooks chosen by what the kernel has."""

from __future__ import annotations

import platform
import secrets
import struct
from importlib.resources import files
from typing import Final

import bpf
from collectors.bpf.bpf_maps import ArrayView, MarkRing, PerCpuMap, possible_cpus
from collectors.bpf.cgroup_names import hierarchy_of
from collectors.bpf.libbpf import BpfObject, available, kernel_has_hook
from collectors.bpf.system_calls import VMLINUX, kernel_version, open_cpu_clocks
from collectors.interface import UnavailableSource

from . import ebpf_tables as layout
from .host_ticks import HostPrograms, Limits, PerCpuTicks, RhythmMaps, Ticks, TimerTicks

_LEAST_KERNEL: Final = (5, 11)
_TIMERS: Final = (5, 19)
"""A tick that reads every CPU: bpf_map_lookup_percpu_elem; before it perf events tick."""
_ABSOLUTE_TIMERS: Final = (6, 4)
_MACHINES: Final = ("x86_64", "aarch64")
"""One object serves both: no program reads registers, offsets come from the kernel's BTF."""
_YOUNGER: Final = {"on_packet_drop": (5, 17)}
"""Programs whose tracepoint is older than the argument that they need."""
_RHYTHM_BYTES: Final = 1 << 20
"""16,384 marks between two drains: the full rate of eight processes."""
_TABLES: Final = {
    "cgroups": (8, layout.CGROUP_FIELDS),
    "block_cgroups": (8, len(layout.BLOCK_CGROUP_COLUMNS)),
    "devices": (4, len(layout.DEVICE_COLUMNS)),
    "peers": (16, len(layout.PEER_COLUMNS)),
}


def unavailable() -> str | None:
    if platform.machine() not in _MACHINES:
        return f"expected {' or '.join(_MACHINES)}, this is {platform.machine()}"
    if not VMLINUX.exists():
        return f"the kernel has no BTF: {VMLINUX} does not exist"
    if kernel_version() < _LEAST_KERNEL:
        return f"expected Linux 5.11 or later, this is {platform.release()}"
    return available()


def load(limits: Limits, *, attach: bool = True) -> HostPrograms:
    """Load and attach everything that this kernel has. Raises SourceUnavailable."""
    image = files(bpf).joinpath("objects/host.bpf.o").read_bytes()
    cpus = possible_cpus()
    absent = [
        UnavailableSource(program, f"this kernel has no tracepoint {hook}")
        for program, hook in layout.PROGRAMS.items()
        if not kernel_has_hook(hook)
    ]
    absent += [
        UnavailableSource(program, f"expected Linux {least[0]}.{least[1]} or later")
        for program, least in _YOUNGER.items()
        if kernel_version() < least
    ]
    cpu_root, block_root = hierarchy_of("cpu"), hierarchy_of("blkio", "io")
    timer = limits.timer and kernel_version() >= _TIMERS
    program = BpfObject(image)
    try:
        program.disable([a.source for a in absent])
        _choose_tick(program, timer, cpus)
        for name in _TABLES:
            program.set_max_entries(name, getattr(limits, name))
        program.set_max_entries("rhythms", limits.rhythms)
        program.set_max_entries("thread_rows", limits.thread_rows)
        program.set_max_entries("rhythm_marks", _RHYTHM_BYTES)
        program.set_initial(".rodata.settings", _settings(limits, cpus, cpu_root.unified))
        program.load()
        loaded = _maps(program, _ticks(program, timer, cpus, limits), cpus, limits)
        loaded.absent = absent
        loaded.cgroup_root, loaded.block_root = cpu_root.path, block_root.path
        loaded.make_other_rows()
        missing = {a.source for a in absent}
        names = [name for name in layout.PROGRAMS if name not in missing]
        loaded.program_fds = {name: program.program_fd(name) for name in names}
        if not attach:
            return loaded
        for name in names:
            program.attach(name)
        if timer:
            program.run("start_ticks")
        else:
            program.attach_events("on_perf_tick", open_cpu_clocks(limits.tick_ns))
    except BaseException:
        program.close()
        raise
    return loaded


def _choose_tick(program: BpfObject, timer: bool, cpus: int) -> None:
    """Load what ticks here: the timer and its one ring, or perf events and a ring for each CPU."""
    if timer:
        program.disable(["on_perf_tick"])
        return
    program.disable(["start_ticks"])
    program.leave_out_map("timers")
    program.set_max_entries("snapshots", layout.SNAPSHOT_SLOTS * cpus)
    program.set_max_entries("ticks", cpus)


def _ticks(program: BpfObject, timer: bool, cpus: int, limits: Limits) -> Ticks:
    rings = 1 if timer else cpus
    slots = rings * layout.SNAPSHOT_SLOTS
    snapshots = ArrayView(program.map_fd("snapshots"), slots, layout.SNAPSHOT_FIELDS)
    state = ArrayView(program.map_fd("ticks"), rings, layout.TICK_STATE_FIELDS)
    if timer:
        return TimerTicks(snapshots, state)
    return PerCpuTicks(snapshots, state, cpus, limits.tick_ns)


def _settings(limits: Limits, cpus: int, unified: bool) -> bytes:
    absolute = limits.absolute_timer and kernel_version() >= _ABSOLUTE_TIMERS
    mask = (1 << limits.timed_hits_log2) - 1
    socket_key = secrets.randbits(32) | 1
    return struct.pack("=QQIIII", limits.tick_ns, mask, cpus, absolute, unified, socket_key)


def _maps(program: BpfObject, ticks: Ticks, cpus: int, limits: Limits) -> HostPrograms:
    fd = program.map_fd
    ring = MarkRing(fd("rhythm_marks"), _RHYTHM_BYTES)
    processes = PerCpuMap(fd("rhythms"), 4, layout.RHYTHM_FIELDS, 1, limits.rhythms)

    def close() -> None:
        program.close()
        ticks.close()
        ring.close()

    return HostPrograms(
        loader="libbpf",
        cpu_states=PerCpuMap(fd("cpu_states"), 4, layout.CPU_STATE_FIELDS, cpus),
        ticks=ticks,
        tables={
            name: PerCpuMap(fd(name), key_bytes, fields, cpus, getattr(limits, name))
            for name, (key_bytes, fields) in _TABLES.items()
        },
        close=close,
        rhythm=RhythmMaps(ring, processes, fd("watched"), fd(".data.watch")),
    )
