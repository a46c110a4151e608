/* Metrics and map layouts, shared by both loaders and mirrored by collectors/ebpf/ebpf_tables.py
 * (a test holds the two together). All values are u64 and only grow, but for those of cpu_state's end. */
#ifndef POINTILLIST_METRICS_H
#define POINTILLIST_METRICS_H

#define SOFTIRQ_VECTORS 10
#define SNAPSHOT_SLOTS 512 /* 5.12 s at 100 Hz: five missed drains are survived */
#define LATENCY_BINS 24    /* log2 of microseconds, the last open: 8 s and more */
#define OTHER_KEY 0    /* the row of everything that found no room in a bounded map */

/* Totals of one CPU: struct cpu_state.totals, and summed over CPUs in each snapshot. */
enum total {
	SWITCHES,
	SWITCHES_INVOLUNTARY,
	RUN_DELAY_NS,           /* all of it, as /proc/PID/schedstat has it */
	RUN_DELAY_THROTTLED_NS, /* the part of it that a CPU quota imposed */
	CPU_NS,
	IRQ_COUNT,
	IRQ_NS,
	BLOCK_READS,
	BLOCK_WRITES,
	BLOCK_OTHERS,
	BLOCK_READ_BYTES,
	BLOCK_WRITE_BYTES,
	BLOCK_QUEUE_NS,
	BLOCK_TOTAL_NS,
	TCP_RETRANSMITS,
	NET_SENDS,
	NET_SEND_BYTES,
	NET_SEND_QUEUE_BYTES, /* sum over sends of the bytes queued in the socket */
	NET_RECEIVES,
	NET_RECEIVE_BYTES,
	PAGE_FAULTS,
	RECLAIM_DIRECT_COUNT,
	RECLAIM_DIRECT_NS,
	RECLAIM_CGROUP_COUNT,
	RECLAIM_CGROUP_NS,
	CGROUP_DROPS, /* events whose cgroup, device, ... found no room: they are in OTHER */
	BLOCK_CGROUP_DROPS,
	DEVICE_DROPS,
	PEER_DROPS,
	RECLAIM_DROPS,
	WAKEUPS,             /* stays on a CPU that ended in a sleep, so many wake-ups */
	BLOCK_WAITS,         /* those of them that ended in an uninterruptible sleep */
	NET_SEND_WAIT_NS,    /* asleep before a send that left its queue more than half full */
	NET_RECEIVE_WAIT_NS, /* asleep before a receive */
	NET_SRTTS,           /* sends on connections whose round trip is known */
	NET_SRTT_US,         /* sum over them of the smoothed round trip */
	QUEUE_DROPS,         /* packets that a full queue did not take */
	NUMA_MOVES,          /* tasks that were moved to another node for their memory's sake */
	RHYTHM_DROPS,        /* threads, or processes, whose rhythm found no room */
	SOFTIRQ_COUNT,                                    /* one per vector */
	SOFTIRQ_NS = SOFTIRQ_COUNT + SOFTIRQ_VECTORS,     /* one per vector */
	TOTALS = SOFTIRQ_NS + SOFTIRQ_VECTORS,
};

enum program {
	PROGRAM_SCHED_SWITCH,
	PROGRAM_SOFTIRQ_ENTRY,
	PROGRAM_SOFTIRQ_EXIT,
	PROGRAM_IRQ_ENTRY,
	PROGRAM_IRQ_EXIT,
	PROGRAM_BLOCK_COMPLETE,
	PROGRAM_TCP_RETRANSMIT,
	PROGRAM_TCP_RETRANSMIT_SYNACK,
	PROGRAM_SOCK_SEND,
	PROGRAM_SOCK_RECEIVE,
	PROGRAM_PAGE_FAULT,
	PROGRAM_RECLAIM_BEGIN,
	PROGRAM_RECLAIM_END,
	PROGRAM_RECLAIM_CGROUP_BEGIN,
	PROGRAM_RECLAIM_CGROUP_END,
	PROGRAM_PACKET_DROP,
	PROGRAM_NUMA_MOVE,
	PROGRAM_NUMA_SWAP,
	PROGRAMS,
};

/* One CPU: totals, what the programs themselves cost (one hit in N is timed), what runs now. */
struct cpu_state {
	__u64 totals[TOTALS];
	__u64 hits[PROGRAMS];
	__u64 timed_hits[PROGRAMS];
	__u64 timed_ns[PROGRAMS];
	__u64 task; /* on this CPU now, and its counters when it came */
	__u64 task_exec_ns;
	__u64 task_involuntary;
	__u64 softirq_start_ns;
	__u64 irq_start_ns;
	__u64 watched; /* whether the cgroup that runs here is, as of this generation */
	__u64 watch_generation;
	__u64 running_ns; /* used by the task since it came, as of the last tick; 0 when it goes */
	/* The cgroup that runs here, and what is not yet in its row: one look-up per change. */
	__u64 cgroup;
	__u64 pending_cpu_ns;
	__u64 pending_run_delay_ns;
	__u64 pending_switches;
	__u64 pending_switches_involuntary;
	__u64 pending_block_waits;
	__u64 pending_sleep_ns;
	__u64 pending_block_wait_ns;
	__u64 pending_preempted_ns;
};

/* One cgroup on one CPU, by the id of its directory in the CPU hierarchy. */
struct cgroup_row {
	__u64 cpu_ns;
	__u64 run_delay_ns;
	__u64 run_delay_throttled_ns;
	__u64 switches;
	__u64 switches_involuntary;
	__u64 send_bytes;
	__u64 receive_bytes;
	__u64 page_faults;
	__u64 reclaim_ns;
	__u64 block_waits;     /* uninterruptible sleeps */
	__u64 sleep_ns;        /* voluntary sleep; this and what follows of watched cgroups only */
	__u64 block_wait_ns;   /* uninterruptible sleep */
	__u64 preempted_ns;    /* ready, after losing the CPU */
	__u64 send_wait_ns;    /* as NET_SEND_WAIT_NS */
	__u64 receive_wait_ns; /* as NET_RECEIVE_WAIT_NS */
	__u64 quota_periods;     /* of the whole group, as last seen: take the largest of all CPUs */
	__u64 throttled_periods; /* likewise */
	__u64 throttled_ns;      /* likewise: cpu.stat's throttled_time */
	__u64 throttle_seen_ns;  /* this CPU's throttled time as last seen */
	__u64 throttle_from_ns;  /* run-queue clock: the last throttled span that was seen */
	__u64 throttle_until_ns;
};

/* One cgroup's block I/O on one CPU, by the id of its directory in the block hierarchy. */
struct block_cgroup_row {
	__u64 ios;
	__u64 read_bytes;
	__u64 write_bytes;
};

/* One block device, key: major << 20 | minor. */
struct device_row {
	__u64 reads;
	__u64 writes;
	__u64 others;
	__u64 read_bytes;
	__u64 write_bytes;
	__u64 queue_ns; /* from the request's making to the driver; 0 where the kernel keeps no stamp */
	__u64 total_ns; /* from the request's making to its end, as /proc/diskstats */
	__u64 latency_bins[LATENCY_BINS];
};

/* One peer, key: its IPv6 address, IPv4 mapped into it. */
struct peer_key {
	__u8 address[16];
};

struct peer_row {
	__u64 send_bytes;
	__u64 receive_bytes;
	__u64 retransmits;
};

/* One tick. */
struct snapshot {
	__u64 number; /* from 0, without gaps */
	__u64 boottime_ns;
	__u64 missed; /* deadlines that passed without a tick, since the start */
	__u64 totals[TOTALS];
};

/* Set by the loader before the object is loaded. */
struct settings {
	__u64 tick_period_ns;
	__u64 cost_mask; /* one hit in cost_mask + 1 is timed */
	__u32 possible_cpus;
	__u32 timer_absolute; /* where the kernel can; else each tick is set from the last deadline */
	__u32 cgroup_v2;      /* the CPU controller is on the unified hierarchy */
	__u32 socket_key;     /* odd; random, so that a mark tells sockets apart and no address */
};

struct tick_state {
	__u64 ticks; /* snapshots published: the slot of number n is n % SNAPSHOT_SLOTS */
	__u64 missed;
	__u64 deadline_ns;
	__u64 cost_ns; /* of all callbacks */
	__u64 failures; /* the timer could not be set again */
};

#endif
