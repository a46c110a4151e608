/* The fallback of kernels without BPF timers: a perf event on every CPU, which stops while the CPU
 * idles; user space adds the CPUs up. Times are CLOCK_MONOTONIC. */
int on_perf_tick(struct bpf_perf_event_data *context)
{
	u32 number = bpf_get_smp_processor_id(), slot_number;
	struct tick_state *state = ticks.lookup(&number);
	struct cpu_state *cpu = this_cpu();
	struct snapshot *slot;
	u64 now_ns = bpf_ktime_get_ns();

	if (!state || !cpu || number >= POSSIBLE_CPUS)
		return 0;
	slot_number = number * SNAPSHOT_SLOTS + state->ticks % SNAPSHOT_SLOTS;
	slot = snapshots.lookup(&slot_number);
	if (!slot)
		return 0;
	slot->number = state->ticks;
	slot->boottime_ns = now_ns;
	__builtin_memcpy(slot->totals, cpu->totals, sizeof(slot->totals));
	if (cpu->task && now_ns > cpu->task_exec_ns)
		slot->totals[CPU_NS] += now_ns - cpu->task_exec_ns;
	lock_xadd(&state->ticks, 1);
	state->cost_ns += bpf_ktime_get_ns() - now_ns;
	return 0;
}
