static inline void reclaim_begin(enum program program)
{
	struct cpu_state *cpu = this_cpu();
	u32 thread = (u32)bpf_get_current_pid_tgid();
	u64 now_ns = bpf_ktime_get_ns();

	if (!cpu)
		return;
	cpu->hits[program]++;
	if (reclaim_starts.update(&thread, &now_ns))
		cpu->totals[RECLAIM_DROPS]++;
}

static inline void reclaim_end(enum program program, enum total count, enum total time_ns)
{
	struct cpu_state *cpu = this_cpu();
	u32 thread = (u32)bpf_get_current_pid_tgid();
	u64 *began_ns = reclaim_starts.lookup(&thread);

	if (!cpu || !began_ns)
		return;
	cpu->hits[program]++;
	cpu->totals[count]++;
	cpu->totals[time_ns] += bpf_ktime_get_ns() - *began_ns;
	reclaim_starts.delete(&thread);
}

TRACEPOINT_PROBE(vmscan, mm_vmscan_direct_reclaim_begin)
{
	reclaim_begin(PROGRAM_RECLAIM_BEGIN);
	return 0;
}

TRACEPOINT_PROBE(vmscan, mm_vmscan_direct_reclaim_end)
{
	reclaim_end(PROGRAM_RECLAIM_END, RECLAIM_DIRECT_COUNT, RECLAIM_DIRECT_NS);
	return 0;
}

TRACEPOINT_PROBE(vmscan, mm_vmscan_memcg_reclaim_begin)
{
	reclaim_begin(PROGRAM_RECLAIM_CGROUP_BEGIN);
	return 0;
}

TRACEPOINT_PROBE(vmscan, mm_vmscan_memcg_reclaim_end)
{
	reclaim_end(PROGRAM_RECLAIM_CGROUP_END, RECLAIM_CGROUP_COUNT, RECLAIM_CGROUP_NS);
	return 0;
}
