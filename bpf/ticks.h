/* A hundred snapshots a second, taken by a BPF timer with absolute deadlines: it also fires on
 * idle CPUs, where a perf event does not, and needs nobody in user space to wake up. Kernels that
 * refuse start_ticks load on_perf_tick in its place. */
#include "include/state.h"

struct timer_slot {
	struct bpf_timer timer;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct timer_slot);
} timers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SNAPSHOT_SLOTS);
	__type(key, u32);
	__type(value, struct snapshot);
} snapshots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tick_state);
} ticks SEC(".maps");

/* What the task on a CPU has used since it came, noted in the CPU's state too. */
static __always_inline u64 used_since_it_came(struct cpu_state *cpu)
{
	const struct task_struct *task = (const struct task_struct *)cpu->task;
	u64 exec_ns;

	if (!task)
		return 0;
	exec_ns = BPF_CORE_READ(task, se.sum_exec_runtime) - cpu->task_exec_ns;
	/* It may have gone while we looked: then its time is counted already. */
	if (*(const volatile u64 *)&cpu->task != (u64)task || exec_ns >> 63)
		return 0;
	cpu->running_ns = exec_ns;
	return exec_ns;
}

/* Add one CPU to the snapshot, with what its task has used since it came. */
static long add_cpu(u32 number, struct snapshot **slot)
{
	struct cpu_state *cpu;
	u32 zero = 0;
	u64 exec_ns;

	cpu = bpf_map_lookup_percpu_elem(&cpu_states, &zero, number);
	if (!cpu)
		return 1;
	for (int i = 0; i < TOTALS; i++)
		(*slot)->totals[i] += cpu->totals[i];
	exec_ns = used_since_it_came(cpu);
	(*slot)->totals[CPU_NS] += exec_ns;
	return 0;
}

static __always_inline void take_snapshot(struct tick_state *state, u64 now_ns)
{
	struct snapshot *slot;
	u32 index = state->ticks % SNAPSHOT_SLOTS;

	slot = bpf_map_lookup_elem(&snapshots, &index);
	if (!slot)
		return;
	slot->number = state->ticks;
	slot->boottime_ns = now_ns;
	slot->missed = state->missed;
	for (int i = 0; i < TOTALS; i++)
		slot->totals[i] = 0;
	bpf_loop(settings.possible_cpus, add_cpu, &slot, 0);
	/* A full barrier: who reads the new count reads the whole slot. */
	__sync_fetch_and_add(&state->ticks, 1);
}

static __always_inline int set_timer(struct timer_slot *slot, struct tick_state *state, u64 now_ns)
{
	/* Before Linux 6.4 the kernel refuses the flag: then it is set from now. */
	if (settings.timer_absolute &&
	    !bpf_timer_start(&slot->timer, state->deadline_ns, TIMER_ABSOLUTE))
		return 0;
	return bpf_timer_start(&slot->timer, state->deadline_ns - now_ns, 0);
}

static int on_tick(void *map, u32 *key, struct timer_slot *slot)
{
	u64 now_ns = bpf_ktime_get_boot_ns(), passed;
	u32 zero = 0;
	struct tick_state *state = bpf_map_lookup_elem(&ticks, &zero);

	if (!state)
		return 0;
	/* Deadlines that lie wholly behind us were missed; the next is ahead, on the same grid. */
	passed = now_ns > state->deadline_ns ? (now_ns - state->deadline_ns) / settings.tick_period_ns : 0;
	state->missed += passed;
	state->deadline_ns += (passed + 1) * settings.tick_period_ns;
	take_snapshot(state, now_ns);
	if (set_timer(slot, state, now_ns))
		state->failures++;
	state->cost_ns += bpf_ktime_get_boot_ns() - now_ns;
	return 0;
}

SEC("syscall")
int start_ticks(void *context)
{
	u32 zero = 0;
	struct timer_slot *slot = bpf_map_lookup_elem(&timers, &zero);
	struct tick_state *state = bpf_map_lookup_elem(&ticks, &zero);
	u64 now_ns = bpf_ktime_get_boot_ns();
	long error;

	if (!slot || !state)
		return -1;
	error = bpf_timer_init(&slot->timer, &timers, CLOCK_BOOTTIME);
	if (error)
		return error;
	state->deadline_ns = (now_ns / settings.tick_period_ns + 1) * settings.tick_period_ns;
	error = bpf_timer_set_callback(&slot->timer, on_tick);
	return error ? error : set_timer(slot, state, now_ns);
}

/* One perf event a CPU (cpu-clock): a ring and a state for each, added up by user space. Times are
 * CLOCK_MONOTONIC, as in bcc/ticks.c. */
SEC("perf_event")
int on_perf_tick(void *context)
{
	u32 number = bpf_get_smp_processor_id(), slot_number;
	u64 now_ns = bpf_ktime_get_ns();
	struct cpu_state *cpu = this_cpu();
	struct tick_state *state = bpf_map_lookup_elem(&ticks, &number);
	struct snapshot *slot;

	if (!state || !cpu)
		return 0;
	slot_number = number * SNAPSHOT_SLOTS + state->ticks % SNAPSHOT_SLOTS;
	slot = bpf_map_lookup_elem(&snapshots, &slot_number);
	if (!slot)
		return 0;
	slot->number = state->ticks;
	slot->boottime_ns = now_ns;
	for (int i = 0; i < TOTALS; i++)
		slot->totals[i] = cpu->totals[i];
	slot->totals[CPU_NS] += used_since_it_came(cpu);
	__sync_fetch_and_add(&state->ticks, 1);
	state->cost_ns += bpf_ktime_get_ns() - now_ns;
	return 0;
}
