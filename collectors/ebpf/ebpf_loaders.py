"""The loaders: one CO-RE object through libbpf, less what the kernel refuses; and BCC, for kernels
without BTF.

BCC compiles programs of tracepoints and helpers alone, so that headers of another version do no
harm; what needs a kernel struct is listed as absent.
"""

from __future__ import annotations

import platform
import secrets
import struct
import time
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import bpf
from collectors.bpf.bcc import compile_program, tracing
from collectors.bpf.bpf_maps import ArrayView, MarkRing, PerCpuMap, possible_cpus
from collectors.bpf.cgroup_names import hierarchy_of
from collectors.bpf.libbpf import BpfObject, ProgramRefused, available, kernel_has_hook
from collectors.bpf.perf_events import open_cpu_clocks
from collectors.bpf.system_calls import VMLINUX
from collectors.interface import SourceUnavailable, UnavailableSource

from . import ebpf_tables as layout
from .host_ticks import HostPrograms, Limits, PerCpuTicks, RhythmMaps, Ticks, TimerTicks

_MACHINES: Final = ("x86_64", "aarch64")
"""One object serves both: no program reads registers, offsets come from the kernel's BTF."""
_NEEDED: Final = "on_sched_switch"
"""Without it the others say little: a kernel that refuses it is left to BCC."""
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
    return available()


def load_libbpf(limits: Limits, *, attach: bool = True) -> HostPrograms:
    """Load and attach everything that this kernel takes. Raises SourceUnavailable."""
    absent = [
        UnavailableSource(program, f"this kernel has no tracepoint {hook}")
        for program, hook in layout.PROGRAMS.items()
        if not kernel_has_hook(hook)
    ]
    timer = limits.timer
    while True:
        try:
            return _load(limits, absent, timer=timer, attach=attach)
        except SourceUnavailable as error:
            refused = error.program if isinstance(error, ProgramRefused) else ""
            if refused in layout.PROGRAMS and refused != _NEEDED:
                absent.append(UnavailableSource(refused, str(error)))
            elif timer:  # a kernel without its helpers may know its map neither
                timer = False
            else:
                raise


def _load(
    limits: Limits, absent: list[UnavailableSource], *, timer: bool, attach: bool
) -> HostPrograms:
    image = files(bpf).joinpath("objects/host.bpf.o").read_bytes()
    cpus = possible_cpus()
    cpu_root, block_root = hierarchy_of("cpu"), hierarchy_of("blkio", "io")
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
        loaded = _libbpf_maps(program, _ticks(program, timer, cpus, limits), cpus, limits)
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
    mask = (1 << limits.timed_hits_log2) - 1
    socket_key = secrets.randbits(32) | 1
    absolute = limits.absolute_timer
    return struct.pack("=QQIIII", limits.tick_ns, mask, cpus, absolute, unified, socket_key)


def _libbpf_maps(program: BpfObject, ticks: Ticks, cpus: int, limits: Limits) -> HostPrograms:
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


_SOFTWARE_EVENT, _CPU_CLOCK = 1, 0
_CHECK_S: Final = 0.02

PARTS: Final = {
    "sched": "sched:sched_switch sched:sched_wakeup sched:sched_wakeup_new",
    "interrupts": "irq:softirq_entry irq:softirq_exit irq:irq_handler_entry irq:irq_handler_exit",
    "block": "block:block_rq_issue block:block_rq_complete",
    "retransmits": "tcp:tcp_retransmit_skb",
    "sockets": "sock:sock_send_length sock:sock_recv_length",
    "faults": "exceptions:page_fault_user",
    "reclaim": "vmscan:mm_vmscan_direct_reclaim_begin vmscan:mm_vmscan_direct_reclaim_end "
    "vmscan:mm_vmscan_memcg_reclaim_begin vmscan:mm_vmscan_memcg_reclaim_end",
}
"""Parts, and the tracepoints without which a part is left out."""

LIBBPF_ONLY: Final = (
    "metrics by cgroup",
    "throttling",
    "block queue time",
    "exact retransmitted segments",
    "send-queue bytes",
    "bytes by peer",
    "rhythm marks",
    "waits of sends and receives",
    "round-trip times",
    "queue drops",
    "moves between NUMA nodes",
)


def load_bcc(limits: Limits) -> HostPrograms:
    """Compile (about two seconds), load and attach. Raises SourceUnavailable."""
    cpus, folder = possible_cpus(), tracing()
    if folder is None:
        raise SourceUnavailable("expected tracefs at /sys/kernel/tracing")
    usable, absent = _usable_parts(folder)
    flags = [
        f"-DPOSSIBLE_CPUS={cpus}",
        f"-DCOST_MASK={(1 << limits.timed_hits_log2) - 1}",
        "-w",
    ]
    program = compile_program(source_text([*usable, "ticks"]), flags)
    try:
        hertz = 1_000_000_000 // limits.tick_ns
        program.attach_perf_event(
            ev_type=_SOFTWARE_EVENT,
            ev_config=_CPU_CLOCK,
            fn_name=b"on_perf_tick",
            sample_freq=hertz,
        )
        absent += _header_check()
        absent += [UnavailableSource(metric, "needs the libbpf loader") for metric in LIBBPF_ONLY]
        loaded = _bcc_maps(program, cpus, limits.tick_ns)
        loaded.absent = absent
        loaded.make_other_rows()
    except Exception as error:  # noqa: BLE001 - bcc raises Exception itself
        program.cleanup()
        raise SourceUnavailable(f"cannot start the BCC programs: {error}") from None
    return loaded


def source_text(parts: list[str]) -> str:
    """Join the shared layouts and the chosen parts into the text of one program."""
    folder = files(bpf)
    texts = [folder.joinpath("include/metrics.h"), folder.joinpath("bcc/common.h")]
    texts += [folder.joinpath(f"bcc/{part}.c") for part in parts]
    return "".join(text.read_text(encoding="utf-8") for text in texts)


def _usable_parts(folder: Path) -> tuple[list[str], list[UnavailableSource]]:
    usable: list[str] = []
    absent: list[UnavailableSource] = []
    for part, needed in PARTS.items():
        missing = [
            t for t in needed.split() if not (folder / "events" / t.replace(":", "/")).exists()
        ]
        if missing:
            absent.append(
                UnavailableSource(part, f"this kernel has no tracepoint {', '.join(missing)}")
            )
        else:
            usable.append(part)
    return usable, absent


def _header_check() -> list[UnavailableSource]:
    """Compare task->pid with the helper's pid; a difference means headers of another kernel."""
    text = files(bpf).joinpath("bcc/header_check.c").read_text(encoding="utf-8")
    check = compile_program(text, ["-w"])
    try:
        time.sleep(_CHECK_S)  # a few context switches, of which this is one
        agreed, differed = (int(value.value) for _, value in check[b"header_checks"].items())  # noqa: PERF102 - no dict
    finally:
        check.cleanup()
    if differed or not agreed:
        reason = f"kernel headers do not match: pid differs in {differed} of {agreed + differed}"
        return [UnavailableSource("kernel structs", reason)]
    return []


def _bcc_maps(program: Any, cpus: int, period_ns: int) -> HostPrograms:
    def fd(name: str) -> int:
        return int(program[name.encode()].map_fd)

    snapshots = ArrayView(fd("snapshots"), layout.SNAPSHOT_SLOTS * cpus, layout.SNAPSHOT_FIELDS)
    ticks = PerCpuTicks(
        snapshots, ArrayView(fd("ticks"), cpus, layout.TICK_STATE_FIELDS), cpus, period_ns
    )

    def close() -> None:
        program.cleanup()
        ticks.close()

    return HostPrograms(
        loader="bcc",
        cpu_states=PerCpuMap(fd("cpu_states"), 4, layout.CPU_STATE_FIELDS, cpus),
        ticks=ticks,
        tables={
            "devices": PerCpuMap(fd("devices"), 4, len(layout.DEVICE_COLUMNS), cpus, 128),
            "peers": PerCpuMap(fd("peers"), 16, len(layout.PEER_COLUMNS), cpus, 1024),
        },
        close=close,
    )
