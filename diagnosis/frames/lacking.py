"""Which signals this host cannot measure, though a column of zeros stands for them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from collectors.port import Absence

from .signals import SIGNALS

_NODES: Final = Path("/sys/devices/system/node/online")

_LOST: Final = {
    "on_softirq_entry": ("softirq", "busiest_cpu_softirq"),
    "on_softirq_exit": ("softirq", "busiest_cpu_softirq"),
    "on_irq_entry": ("irq", "busiest_cpu_irq"),
    "on_irq_exit": ("irq", "busiest_cpu_irq"),
    "interrupts": ("softirq", "irq", "busiest_cpu_irq", "busiest_cpu_softirq"),
    "on_block_complete": (
        "block_reads",
        "block_writes",
        "block_read_bytes",
        "block_write_bytes",
        "block_ms",
        "block_queue",
        "worst_disk",
    ),
    "block": (
        "block_reads",
        "block_writes",
        "block_read_bytes",
        "block_write_bytes",
        "block_ms",
        "block_queue",
        "worst_disk",
    ),
    "block queue time": ("block_queue",),
    "on_tcp_retransmit": ("retransmits", "worst_peer_retransmits"),
    "retransmits": ("retransmits", "worst_peer_retransmits"),
    "on_sock_send": ("net_send", "send_queue", "srtt"),
    "on_sock_receive": ("net_receive",),
    "sockets": ("net_", "send_queue", "srtt"),
    "send-queue bytes": ("send_queue",),
    "round-trip times": ("srtt", "round_trip"),
    "waits of sends and receives": ("net_send_wait", "net_receive_wait"),
    "bytes by peer": ("worst_peer_retransmits",),
    "on_page_fault": ("page_faults",),
    "faults": ("page_faults",),
    "on_reclaim_begin": ("reclaim_direct",),
    "on_reclaim_end": ("reclaim_direct",),
    "on_reclaim_cgroup_begin": ("reclaim_cgroup",),
    "on_reclaim_cgroup_end": ("reclaim_cgroup",),
    "reclaim": ("reclaim_",),
    "on_packet_drop": ("queue_drops",),
    "queue drops": ("queue_drops",),
    "on_numa_move": ("numa_",),
    "moves between NUMA nodes": ("numa_",),
    "throttling": ("throttled_delay",),
}
"""What the eBPF source names as absent, to the starts of the signals that are lost with it."""


def lacking(absent: Iterable[Absence], nodes: Path = _NODES) -> frozenset[str]:
    """Give the signals that cannot be measured where running sources lack these parts."""
    starts = {start for one in absent for start in _LOST.get(one.source, ())}
    if not _several(nodes):
        starts.add("numa_")
    return frozenset(name for name in SIGNALS if name.startswith(tuple(starts)))


def _several(nodes: Path) -> bool:
    """Tell whether memory has several nodes: `0-1` or `0,2`."""
    try:
        text = nodes.read_text(encoding="ascii")
    except OSError:
        return False
    return "-" in text or "," in text
