/* For kernels without BTF: the same metrics and layouts, from tracepoint arguments and helpers only.
 * The loader puts ../include/metrics.h before this file and the parts it can use behind it. */
#include <uapi/linux/ptrace.h>
#include <uapi/linux/bpf_perf_event.h>

struct request_key {
	u64 sector;
	u32 device;
	u32 unused;
};

BPF_PERCPU_ARRAY(cpu_states, struct cpu_state, 1);
BPF_TABLE("percpu_hash", u32, struct device_row, devices, 128);
BPF_TABLE("percpu_hash", struct peer_key, struct peer_row, peers, 1024);
BPF_TABLE("hash", u32, u64, queued, 16384);
BPF_TABLE("hash", struct request_key, u64, requests, 8192);
BPF_TABLE("hash", u32, u64, reclaim_starts, 1024);
BPF_F_TABLE("array", u32, struct snapshot, snapshots, SNAPSHOT_SLOTS * POSSIBLE_CPUS, BPF_F_MMAPABLE);
BPF_F_TABLE("array", u32, struct tick_state, ticks, POSSIBLE_CPUS, BPF_F_MMAPABLE);

static inline struct cpu_state *this_cpu(void)
{
	u32 zero = 0;

	return cpu_states.lookup(&zero);
}

static inline u64 cost_begin(struct cpu_state *cpu, enum program program)
{
	u64 hits = cpu->hits[program]++;

	return hits & COST_MASK ? 0 : bpf_ktime_get_ns();
}

static inline void cost_end(struct cpu_state *cpu, enum program program, u64 start_ns)
{
	if (!start_ns)
		return;
	cpu->timed_hits[program]++;
	cpu->timed_ns[program] += bpf_ktime_get_ns() - start_ns;
}
