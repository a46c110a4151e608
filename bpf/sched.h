/* The scheduler: run-queue delay, CPU time, involuntary switches, throttling, in one hook.
 *
 * The run-queue clock of this CPU stands still while it switches, so clock - last_queued is what
 * the scheduler itself adds to the task's run_delay a moment later: no time is taken, no wake-up
 * hook is needed and nothing is stored per task. */
#include "rhythm.h"

/* Time that [queued, now] shares with the last span in which this group was throttled here. */
static __always_inline u64 throttled_part(struct cgroup_row *row, const struct task_struct *next,
					  const struct task_group *group, u64 queued_ns, u64 now_ns)
{
	u64 seen_ns, from_ns;

	if (bpf_core_field_exists(struct cfs_rq, throttled_clock_self_time))
		seen_ns = next->se.cfs_rq->throttled_clock_self_time;
	else
		seen_ns = group->cfs_bandwidth.throttled_time; /* of all CPUs: too much, never too little */
	if (seen_ns > row->throttle_seen_ns) {
		row->throttle_until_ns = now_ns;
		row->throttle_from_ns = now_ns - (seen_ns - row->throttle_seen_ns);
		row->throttle_seen_ns = seen_ns;
	}
	from_ns = queued_ns > row->throttle_from_ns ? queued_ns : row->throttle_from_ns;
	return row->throttle_until_ns > from_ns ? row->throttle_until_ns - from_ns : 0;
}

/* Give the row of the cgroup that ran here what was kept back for it. */
static __always_inline void flush(struct cpu_state *cpu)
{
	struct cgroup_row *row;

	if (!cpu->cgroup)
		return;
	row = cgroup_row_of(cpu, cpu->cgroup);
	if (row) {
		row->cpu_ns += cpu->pending_cpu_ns;
		row->run_delay_ns += cpu->pending_run_delay_ns;
		row->switches += cpu->pending_switches;
		row->switches_involuntary += cpu->pending_switches_involuntary;
		row->block_waits += cpu->pending_block_waits;
		row->sleep_ns += cpu->pending_sleep_ns;
		row->block_wait_ns += cpu->pending_block_wait_ns;
		row->preempted_ns += cpu->pending_preempted_ns;
	}
	cpu->pending_cpu_ns = 0;
	cpu->pending_run_delay_ns = 0;
	cpu->pending_switches = 0;
	cpu->pending_switches_involuntary = 0;
	cpu->pending_block_waits = 0;
	cpu->pending_sleep_ns = 0;
	cpu->pending_block_wait_ns = 0;
	cpu->pending_preempted_ns = 0;
}

static __always_inline void run_as(struct cpu_state *cpu, u64 cgroup)
{
	if (cgroup != cpu->cgroup) {
		flush(cpu);
		cpu->cgroup = cgroup;
	} else if (cpu->watch_generation == watch_generation) {
		return;
	}
	watch(cpu);
}

/* Now and then a switch reaches no hook (5 of 287 in a tenth of a second were seen, 6.18): the
 * scheduler's own note of when the task came stands in. Not on a CPU's first switch: that task may
 * have come long before us. */
static __always_inline bool came_unseen(struct cpu_state *cpu, const struct task_struct *task)
{
	u64 came_ns = task->sched_info.last_arrival, now_ns = task->se.cfs_rq->rq->clock;

	if (!task->pid || !cpu->cgroup || !came_ns || now_ns < came_ns)
		return false;
	cpu->task_exec_ns = task->se.sum_exec_runtime - (now_ns - came_ns);
	cpu->task_involuntary = task->nivcsw;
	run_as(cpu, cgroup_of(task));
	return true;
}

static __always_inline void switch_out(struct cpu_state *cpu, const struct task_struct *prev,
				       bool preempt)
{
	u64 exec_ns, involuntary;
	enum gone gone;

	/* The idle task is nobody's, and never kept. */
	if (cpu->task != (u64)prev && !came_unseen(cpu, prev))
		return;
	exec_ns = prev->se.sum_exec_runtime - cpu->task_exec_ns;
	involuntary = prev->nivcsw - cpu->task_involuntary;
	cpu->totals[CPU_NS] += exec_ns;
	cpu->totals[SWITCHES_INVOLUNTARY] += involuntary;
	cpu->pending_cpu_ns += exec_ns;
	cpu->pending_switches++;
	cpu->pending_switches_involuntary += involuntary;
	gone = gone_where(prev, preempt);
	if (gone != GONE_PREEMPTED)
		cpu->totals[WAKEUPS]++;
	if (gone == GONE_BLOCKED) {
		cpu->totals[BLOCK_WAITS]++;
		cpu->pending_block_waits++;
	}
	if (cpu->watched)
		note_going(cpu, prev, gone);
}

static __always_inline void add_throttling(struct cpu_state *cpu, const struct task_struct *next,
					   const struct task_group *group, u64 queued_ns,
					   u64 now_ns)
{
	struct cgroup_row *row = cgroup_row_of(cpu, cpu->cgroup);
	u64 throttled_ns;

	if (!row)
		return;
	row->quota_periods = group->cfs_bandwidth.nr_periods;
	row->throttled_periods = group->cfs_bandwidth.nr_throttled;
	row->throttled_ns = group->cfs_bandwidth.throttled_time;
	throttled_ns = throttled_part(row, next, group, queued_ns, now_ns);
	if (throttled_ns > now_ns - queued_ns)
		throttled_ns = now_ns - queued_ns;
	row->run_delay_throttled_ns += throttled_ns;
	cpu->totals[RUN_DELAY_THROTTLED_NS] += throttled_ns;
}

static __always_inline void switch_in(struct cpu_state *cpu, const struct task_struct *next)
{
	const struct task_group *group;
	u64 queued_ns, now_ns;

	cpu->running_ns = 0;
	cpu->task = next->pid ? (u64)next : 0;
	if (!cpu->task)
		return;
	cpu->task_exec_ns = next->se.sum_exec_runtime;
	cpu->task_involuntary = next->nivcsw;
	run_as(cpu, cgroup_of(next));
	queued_ns = next->sched_info.last_queued;
	now_ns = next->se.cfs_rq->rq->clock;
	if (cpu->watched)
		note_coming(cpu, next, queued_ns, now_ns);
	if (!queued_ns || now_ns < queued_ns)
		return;
	cpu->totals[RUN_DELAY_NS] += now_ns - queued_ns;
	cpu->pending_run_delay_ns += now_ns - queued_ns;
	group = next->sched_task_group;
	if (group->cfs_bandwidth.quota != ~0ULL)
		add_throttling(cpu, next, group, queued_ns, now_ns);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct cpu_state *cpu = this_cpu();
	u64 start_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_SCHED_SWITCH);
	cpu->totals[SWITCHES]++;
	switch_out(cpu, prev, preempt);
	switch_in(cpu, next);
	cost_end(cpu, PROGRAM_SCHED_SWITCH, start_ns);
	return 0;
}
