/* Memory: page faults from user space, time spent in direct and memory-cgroup reclaim, moves of tasks
 * to the node of their memory. */
#include "include/state.h"

/* Reclaim sleeps and moves between CPUs, and is rare: its start is kept by thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, u32);
	__type(value, u64);
} reclaim_starts SEC(".maps");

SEC("tp_btf/page_fault_user")
int BPF_PROG(on_page_fault)
{
	struct cpu_state *cpu = this_cpu();
	struct cgroup_row *row;
	u64 start_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_PAGE_FAULT);
	cpu->totals[PAGE_FAULTS]++;
	row = current_cgroup_row(cpu);
	if (row)
		row->page_faults++;
	cost_end(cpu, PROGRAM_PAGE_FAULT, start_ns);
	return 0;
}

static __always_inline int reclaim_begin(enum program program)
{
	struct cpu_state *cpu = this_cpu();
	u32 thread = (u32)bpf_get_current_pid_tgid();
	u64 start_ns, now_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, program);
	now_ns = bpf_ktime_get_ns();
	if (bpf_map_update_elem(&reclaim_starts, &thread, &now_ns, BPF_ANY))
		cpu->totals[RECLAIM_DROPS]++;
	cost_end(cpu, program, start_ns);
	return 0;
}

static __always_inline int reclaim_end(enum program program, enum total count, enum total time_ns)
{
	struct cpu_state *cpu = this_cpu();
	u32 thread = (u32)bpf_get_current_pid_tgid();
	struct cgroup_row *row;
	u64 start_ns, spent_ns, *began_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, program);
	began_ns = bpf_map_lookup_elem(&reclaim_starts, &thread);
	if (began_ns) {
		spent_ns = bpf_ktime_get_ns() - *began_ns;
		bpf_map_delete_elem(&reclaim_starts, &thread);
		cpu->totals[count]++;
		cpu->totals[time_ns] += spent_ns;
		row = current_cgroup_row(cpu);
		if (row)
			row->reclaim_ns += spent_ns;
	}
	cost_end(cpu, program, start_ns);
	return 0;
}

SEC("tp_btf/mm_vmscan_direct_reclaim_begin")
int BPF_PROG(on_reclaim_begin)
{
	return reclaim_begin(PROGRAM_RECLAIM_BEGIN);
}

SEC("tp_btf/mm_vmscan_direct_reclaim_end")
int BPF_PROG(on_reclaim_end)
{
	return reclaim_end(PROGRAM_RECLAIM_END, RECLAIM_DIRECT_COUNT, RECLAIM_DIRECT_NS);
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_begin")
int BPF_PROG(on_reclaim_cgroup_begin)
{
	return reclaim_begin(PROGRAM_RECLAIM_CGROUP_BEGIN);
}

SEC("tp_btf/mm_vmscan_memcg_reclaim_end")
int BPF_PROG(on_reclaim_cgroup_end)
{
	return reclaim_end(PROGRAM_RECLAIM_CGROUP_END, RECLAIM_CGROUP_COUNT, RECLAIM_CGROUP_NS);
}

static __always_inline int numa_moved(enum program program, u32 tasks)
{
	struct cpu_state *cpu = this_cpu();
	u64 start_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, program);
	cpu->totals[NUMA_MOVES] += tasks;
	cost_end(cpu, program, start_ns);
	return 0;
}

SEC("tp_btf/sched_move_numa")
int BPF_PROG(on_numa_move)
{
	return numa_moved(PROGRAM_NUMA_MOVE, 1);
}

SEC("tp_btf/sched_swap_numa")
int BPF_PROG(on_numa_swap)
{
	return numa_moved(PROGRAM_NUMA_SWAP, 2);
}
