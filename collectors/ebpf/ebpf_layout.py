"""Names of what the BPF programs count, in the order of bpf/include/metrics.h (a test compares)."""

from __future__ import annotations

from typing import Final

SOFTIRQ_VECTORS: Final = (
    "hi", "timer", "net_tx", "net_rx", "block", "irq_poll", "tasklet", "sched", "hrtimer", "rcu",
)  # fmt: skip
SNAPSHOT_SLOTS: Final = 512
LATENCY_BINS: Final = 24

_PLAIN_TOTALS: Final = (
    "switches",
    "switches_involuntary",
    "run_delay_ns",
    "run_delay_throttled_ns",
    "cpu_ns",
    "irq_count",
    "irq_ns",
    "block_reads",
    "block_writes",
    "block_others",
    "block_read_bytes",
    "block_write_bytes",
    "block_queue_ns",
    "block_total_ns",
    "tcp_retransmits",
    "net_sends",
    "net_send_bytes",
    "net_send_queue_bytes",
    "net_receives",
    "net_receive_bytes",
    "page_faults",
    "reclaim_direct_count",
    "reclaim_direct_ns",
    "reclaim_cgroup_count",
    "reclaim_cgroup_ns",
    "cgroup_drops",
    "block_cgroup_drops",
    "device_drops",
    "peer_drops",
    "reclaim_drops",
    "wakeups",
    "block_waits",
    "net_send_wait_ns",
    "net_receive_wait_ns",
    "net_srtts",
    "net_srtt_us",
    "queue_drops",
    "numa_moves",
    "rhythm_drops",
)
TOTALS: Final = (
    *_PLAIN_TOTALS,
    *(f"softirq_count_{vector}" for vector in SOFTIRQ_VECTORS),
    *(f"softirq_ns_{vector}" for vector in SOFTIRQ_VECTORS),
)

PROGRAMS: Final = {
    "on_sched_switch": "sched_switch",
    "on_softirq_entry": "softirq_entry",
    "on_softirq_exit": "softirq_exit",
    "on_irq_entry": "irq_handler_entry",
    "on_irq_exit": "irq_handler_exit",
    "on_block_complete": "block_rq_complete",
    "on_tcp_retransmit": "tcp_retransmit_skb",
    "on_tcp_retransmit_synack": "tcp_retransmit_synack",
    "on_sock_send": "sock_send_length",
    "on_sock_receive": "sock_recv_length",
    "on_page_fault": "page_fault_user",
    "on_reclaim_begin": "mm_vmscan_direct_reclaim_begin",
    "on_reclaim_end": "mm_vmscan_direct_reclaim_end",
    "on_reclaim_cgroup_begin": "mm_vmscan_memcg_reclaim_begin",
    "on_reclaim_cgroup_end": "mm_vmscan_memcg_reclaim_end",
    "on_packet_drop": "kfree_skb",
    "on_numa_move": "sched_move_numa",
    "on_numa_swap": "sched_swap_numa",
}
"""Program -> tracepoint, in the order of `enum program`."""

PENDING_COLUMNS: Final = (
    "cpu_ns",
    "run_delay_ns",
    "switches",
    "switches_involuntary",
    "block_waits",
    "sleep_ns",
    "block_wait_ns",
    "preempted_ns",
)
"""What a CPU keeps back for the cgroup that runs on it. Before them stand what the task on the CPU
had used by the last tick, and the cgroup's id."""

CPU_STATE_FIELDS: Final = len(TOTALS) + 3 * len(PROGRAMS) + 7 + 2 + len(PENDING_COLUMNS)

CGROUP_COLUMNS: Final = (
    "cpu_ns",
    "run_delay_ns",
    "run_delay_throttled_ns",
    "switches",
    "switches_involuntary",
    "send_bytes",
    "receive_bytes",
    "page_faults",
    "reclaim_ns",
    "block_waits",
    "sleep_ns",
    "block_wait_ns",
    "preempted_ns",
    "send_wait_ns",
    "receive_wait_ns",
    "quota_periods",
    "throttled_periods",
    "throttled_ns",
)
CGROUP_FIELDS: Final = len(CGROUP_COLUMNS) + 3
CGROUP_LATEST: Final = ("quota_periods", "throttled_periods", "throttled_ns")
"""Columns that hold the whole group's value as each CPU last saw it: the largest counts."""

BLOCK_CGROUP_COLUMNS: Final = ("ios", "read_bytes", "write_bytes")
DEVICE_COLUMNS: Final = (
    "reads",
    "writes",
    "others",
    "read_bytes",
    "write_bytes",
    "queue_ns",
    "total_ns",
    *(f"latency_log2_us_{bin_}" for bin_ in range(LATENCY_BINS)),
)
PEER_COLUMNS: Final = ("send_bytes", "receive_bytes", "retransmits")

SNAPSHOT_HEAD: Final = 3
SNAPSHOT_FIELDS: Final = SNAPSHOT_HEAD + len(TOTALS)
TICK_STATE: Final = ("ticks", "missed", "deadline_ns", "cost_ns", "failures")
TICK_STATE_FIELDS: Final = len(TICK_STATE)

RHYTHM_KINDS: Final = 4
RHYTHM_FIELDS: Final = 1 + 2 * RHYTHM_KINDS
"""Words of `struct rhythm_row` in bpf/include/marks.h: the process's start; by kind when the next
mark is due; by kind what was only counted."""
