/* Run-queue delay needs the wake-up hooks here: no kernel struct is read. */
#define NEITHER_RUNNING_NOR_BLOCKED 0x100 /* prev_state of a preempted task */

#define UNINTERRUPTIBLE 2
#define UNINTERRUPTIBLE_OR_IDLE 0x402 /* idle kernel threads are no waits */

static inline void enqueue(struct cpu_state *cpu, u32 pid)
{
	u64 now_ns = bpf_ktime_get_ns();

	if (pid)
		queued.update(&pid, &now_ns);
}

TRACEPOINT_PROBE(sched, sched_wakeup)
{
	struct cpu_state *cpu = this_cpu();

	if (cpu)
		enqueue(cpu, args->pid);
	return 0;
}

TRACEPOINT_PROBE(sched, sched_wakeup_new)
{
	struct cpu_state *cpu = this_cpu();

	if (cpu)
		enqueue(cpu, args->pid);
	return 0;
}

TRACEPOINT_PROBE(sched, sched_switch)
{
	struct cpu_state *cpu = this_cpu();
	u32 prev = args->prev_pid, next = args->next_pid;
	u64 start_ns, now_ns, *since_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_SCHED_SWITCH);
	now_ns = bpf_ktime_get_ns();
	cpu->totals[SWITCHES]++;
	if (prev && !(args->prev_state & (NEITHER_RUNNING_NOR_BLOCKED - 1))) {
		cpu->totals[SWITCHES_INVOLUNTARY]++;
		enqueue(cpu, prev);
	} else if (prev) {
		cpu->totals[WAKEUPS]++;
		if ((args->prev_state & UNINTERRUPTIBLE_OR_IDLE) == UNINTERRUPTIBLE)
			cpu->totals[BLOCK_WAITS]++;
		queued.delete(&prev); /* it was woken while it still ran */
	}
	if (prev && cpu->task == prev)
		cpu->totals[CPU_NS] += now_ns - cpu->task_exec_ns;
	cpu->task = next;
	cpu->task_exec_ns = now_ns;
	since_ns = queued.lookup(&next);
	if (since_ns) {
		if (now_ns > *since_ns)
			cpu->totals[RUN_DELAY_NS] += now_ns - *since_ns;
		queued.delete(&next);
	}
	cost_end(cpu, PROGRAM_SCHED_SWITCH, start_ns);
	return 0;
}
