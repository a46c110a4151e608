/* A process's rhythm: when its threads come back from a sleep, send and receive.
 *
 * Threads of cgroups that user space watches alone pay for it. Where a thread was is kept by thread,
 * marks are bounded by process, and what is beyond the bound is counted. */
#ifndef POINTILLIST_RHYTHM_H
#define POINTILLIST_RHYTHM_H

#include "include/state.h"
#include "include/marks.h"

/* Moved on by user space after it has changed `watched`; 0: nothing is watched. */
volatile u64 watch_generation SEC(".data.watch") = 0;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, u64);
	__type(value, u64);
} watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} rhythm_marks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, struct rhythm_row);
} rhythms SEC(".maps");

/* Threads end unseen: the one that has been silent for longest makes room. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u32);
	__type(value, struct thread_row);
} thread_rows SEC(".maps");

static __always_inline void watch(struct cpu_state *cpu)
{
	u64 cgroup = cpu->cgroup;

	cpu->watch_generation = watch_generation;
	cpu->watched = cpu->watch_generation && bpf_map_lookup_elem(&watched, &cgroup);
}

/* Whether the running task is watched; what the CPU knows may be of another, where the switch to
 * this one reached no hook. */
static __always_inline bool watches(struct cpu_state *cpu, const struct task_struct *task)
{
	u64 cgroup;

	if (cpu->task == (u64)task)
		return cpu->watched;
	cgroup = cgroup_of(task);
	return watch_generation && bpf_map_lookup_elem(&watched, &cgroup);
}

static __always_inline enum gone gone_where(const struct task_struct *prev, bool preempt)
{
	const struct task_struct___before_5_14 *old = (const void *)prev;
	u64 state;

	if (bpf_core_field_exists(struct task_struct, __state))
		state = prev->__state;
	else
		state = old->state;
	if (preempt || !state)
		return GONE_PREEMPTED;
	return (state & (TASK_UNINTERRUPTIBLE | TASK_NOLOAD)) == TASK_UNINTERRUPTIBLE ? GONE_BLOCKED :
										       GONE_ASLEEP;
}

static __always_inline struct thread_row *known_thread(const struct task_struct *task)
{
	u32 thread = task->pid;
	struct thread_row *row = bpf_map_lookup_elem(&thread_rows, &thread);

	return row && row->start_ns == task->start_boottime ? row : 0;
}

static __always_inline struct thread_row *thread_row_of(struct cpu_state *cpu,
							const struct task_struct *task)
{
	struct thread_row empty = {}, *row = known_thread(task);
	u32 thread = task->pid;

	if (row)
		return row;
	empty.start_ns = task->start_boottime;
	bpf_map_update_elem(&thread_rows, &thread, &empty, BPF_ANY);
	row = bpf_map_lookup_elem(&thread_rows, &thread);
	if (!row)
		cpu->totals[RHYTHM_DROPS]++;
	return row;
}

static __always_inline struct rhythm_row *rhythm_of(struct cpu_state *cpu,
						    const struct task_struct *task)
{
	struct rhythm_row empty = {}, *row;
	u64 start_ns = task->group_leader->start_boottime;
	u32 tgid = task->tgid;

	row = bpf_map_lookup_elem(&rhythms, &tgid);
	if (row && row->start_ns == start_ns)
		return row;
	empty.start_ns = start_ns;
	bpf_map_update_elem(&rhythms, &tgid, &empty, BPF_ANY);
	row = bpf_map_lookup_elem(&rhythms, &tgid);
	if (!row)
		cpu->totals[RHYTHM_DROPS]++;
	return row;
}

/* The newest round trip that the connection's acknowledgements told of; 0: none, or it is not TCP. */
static __always_inline u64 round_trip_us(const struct sock *sk)
{
	const struct tcp_sock *tcp = (const void *)bpf_skc_to_tcp_sock((void *)sk);

	return tcp ? tcp->rack.rtt_us : 0;
}

/* Whether a mark may be made now. Two CPUs at once may take one more than is due: no harm. */
static __always_inline bool take_turn(u64 *due_ns, u64 now_ns)
{
	u64 due = *due_ns;

	if (due > now_ns + RHYTHM_BURST_NS)
		return false;
	*due_ns = (due > now_ns ? due : now_ns) + RHYTHM_INTERVAL_NS;
	return true;
}

static __always_inline void emit_rhythm(struct cpu_state *cpu, const struct task_struct *task,
					struct rhythm_row *row, enum rhythm_kind kind, u64 value,
					const struct sock *sk, u64 trip_us, u64 now_ns)
{
	struct mark *mark = 0;
	u64 address;

	if (take_turn(&row->due_ns[kind], now_ns))
		mark = bpf_ringbuf_reserve(&rhythm_marks, sizeof(*mark), 0);
	if (!mark) {
		__sync_fetch_and_add(&row->beyond[kind], 1);
		return;
	}
	mark->at_ns = bpf_ktime_get_boot_ns();
	mark->value = value;
	mark->process = (u64)(u32)task->tgid << 32 | (u32)task->pid;
	mark->start_ns = row->start_ns;
	mark->cgroup = cgroup_of(task);
	mark->what = kind;
	/* Through memory: a pointer itself may not be calculated with. */
	*(volatile u64 *)&mark->extra = (u64)sk;
	address = *(volatile u64 *)&mark->extra;
	mark->extra = trip_us << 32 | (u32)((u32)(address >> 6) * settings.socket_key);
	bpf_ringbuf_submit(mark, BPF_RB_NO_WAKEUP);
}

static __always_inline void note_going(struct cpu_state *cpu, const struct task_struct *prev,
				       enum gone gone)
{
	struct thread_row *row;

	/* Threads of the kernel make no steps. */
	if (prev->flags & PF_KTHREAD)
		return;
	row = thread_row_of(cpu, prev);
	if (!row)
		return;
	row->gone_ns = prev->se.cfs_rq->rq->clock;
	row->gone = gone;
}

/* A thread was away until it was queued; what it waited for the CPU then is run-queue delay. */
static __always_inline void note_coming(struct cpu_state *cpu, const struct task_struct *next,
					u64 queued_ns, u64 now_ns)
{
	struct thread_row *row = known_thread(next);
	struct rhythm_row *rhythm;
	u64 away_ns, gone;

	if (!row || row->gone == GONE_NOWHERE)
		return;
	gone = row->gone;
	row->gone = GONE_NOWHERE;
	if (now_ns < row->gone_ns)
		return;
	if (gone == GONE_PREEMPTED) {
		cpu->pending_preempted_ns += now_ns - row->gone_ns;
		return;
	}
	away_ns = (queued_ns > row->gone_ns && queued_ns < now_ns ? queued_ns : now_ns) - row->gone_ns;
	if (gone == GONE_BLOCKED) {
		cpu->pending_block_wait_ns += away_ns;
	} else {
		cpu->pending_sleep_ns += away_ns;
		row->slept_ns += away_ns;
	}
	rhythm = rhythm_of(cpu, next);
	if (!rhythm)
		return;
	if (gone == GONE_BLOCKED)
		emit_rhythm(cpu, next, rhythm, RHYTHM_BLOCK, away_ns, 0, 0, now_ns);
	else
		emit_rhythm(cpu, next, rhythm, RHYTHM_WAKE, away_ns, 0, 0, now_ns);
}

/* The running thread sent or received. Returns how long it has slept since it last did. */
static __always_inline u64 note_network(struct cpu_state *cpu, const struct sock *sk,
					enum rhythm_kind kind, u64 bytes)
{
	const struct task_struct *task = (const struct task_struct *)bpf_get_current_task_btf();
	struct rhythm_row *rhythm;
	struct thread_row *row;
	u64 slept_ns = 0;

	if (!watches(cpu, task))
		return 0;
	rhythm = rhythm_of(cpu, task);
	row = known_thread(task);
	if (row) {
		slept_ns = row->slept_ns;
		row->slept_ns = 0;
	}
	if (rhythm)
		emit_rhythm(cpu, task, rhythm, kind, bytes, sk, round_trip_us(sk),
			    bpf_ktime_get_boot_ns());
	return slept_ns;
}

#endif
