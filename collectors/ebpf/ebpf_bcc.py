"""The loader for kernels without BTF: BCC compiles programs of tracepoints and helpers alone, so
that headers of another version do no harm; what needs a kernel struct is listed as absent."""

from __future__ import annotations

import time
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import bpf
from collectors.bpf.bcc import compile_program, tracing
from collectors.bpf.bpf_maps import ArrayView, PerCpuMap, possible_cpus
from collectors.interface import SourceUnavailable, UnavailableSource

from . import ebpf_tables as layout
from .host_ticks import HostPrograms, Limits, PerCpuTicks

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


def load(limits: Limits) -> HostPrograms:
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
        loaded = _maps(program, cpus, limits.tick_ns)
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


def _maps(program: Any, cpus: int, period_ns: int) -> HostPrograms:
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
