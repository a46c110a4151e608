/* What every program uses: settings, the CPU's state, its own cost, rows of bounded maps. */
#ifndef POINTILLIST_STATE_H
#define POINTILLIST_STATE_H

#include "cgroup.h"
#include "metrics.h"

/* In a section of its own, so that the loader can write it whole. */
const volatile struct settings settings SEC(".rodata.settings") = {
	.tick_period_ns = 10000000,
	.cost_mask = 255,
	.possible_cpus = 1,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_state);
} cpu_states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__type(key, u64);
	__type(value, struct cgroup_row);
} cgroups SEC(".maps");

static __always_inline struct cpu_state *this_cpu(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&cpu_states, &zero);
}

/* Begin a program: count the hit, time one in N. Returns the start, 0 when untimed. */
static __always_inline u64 cost_begin(struct cpu_state *cpu, enum program program)
{
	u64 hits = cpu->hits[program]++;

	return hits & settings.cost_mask ? 0 : bpf_ktime_get_ns();
}

static __always_inline void cost_end(struct cpu_state *cpu, enum program program, u64 start_ns)
{
	if (!start_ns)
		return;
	cpu->timed_hits[program]++;
	cpu->timed_ns[program] += bpf_ktime_get_ns() - start_ns;
}

/* Give the row of a key, made where there is room; else the row of OTHER, counted as a drop. */
#define ROW_OF(map, key_ptr, other_ptr, empty_ptr, cpu, drops)                                     \
	({                                                                                         \
		void *row_ = bpf_map_lookup_elem(map, key_ptr);                                    \
		if (!row_) {                                                                       \
			bpf_map_update_elem(map, key_ptr, empty_ptr, BPF_NOEXIST);                 \
			row_ = bpf_map_lookup_elem(map, key_ptr);                                  \
			if (!row_) {                                                               \
				(cpu)->totals[drops]++;                                            \
				row_ = bpf_map_lookup_elem(map, other_ptr);                        \
			}                                                                          \
		}                                                                                  \
		row_;                                                                              \
	})

static const struct cgroup_row empty_cgroup;

static __always_inline u64 cgroup_of(const struct task_struct *task)
{
	return cgroup_in(task, settings.cgroup_v2);
}

static __always_inline struct cgroup_row *cgroup_row_of(struct cpu_state *cpu, u64 cgroup)
{
	const u64 other = OTHER_KEY;

	return ROW_OF(&cgroups, &cgroup, &other, &empty_cgroup, cpu, CGROUP_DROPS);
}

static __always_inline struct cgroup_row *current_cgroup_row(struct cpu_state *cpu)
{
	return cgroup_row_of(cpu, cgroup_of((const struct task_struct *)bpf_get_current_task_btf()));
}

#endif
