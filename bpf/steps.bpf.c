/* Step marks: named functions of programs, each call of which ends or is a step.
 *
 * The attach cookie says which probe it is. No register is read, so one object serves every machine.
 * README.md says what a mark costs. */
#include "include/cgroup.h"
#include "include/marks.h"

const volatile struct mark_settings mark_settings SEC(".rodata.marks") = {};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} step_marks SEC(".maps");

/* Threads come and go unseen: the one that has been silent for longest makes room. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, struct step_thread);
} step_threads SEC(".maps");

static __always_inline u64 thread_key(const struct task_struct *task, u64 probe)
{
	return (u64)(u32)task->pid << 32 | (u32)probe;
}

static __always_inline struct step_thread *thread_of(const struct task_struct *task, u64 key)
{
	struct step_thread empty = {}, *thread = bpf_map_lookup_elem(&step_threads, &key);

	if (thread && thread->thread_start_ns == task->start_boottime)
		return thread;
	empty.thread_start_ns = task->start_boottime;
	empty.tgid = task->tgid;
	empty.process_start_ns = task->group_leader->start_boottime;
	bpf_map_update_elem(&step_threads, &key, &empty, BPF_ANY);
	return bpf_map_lookup_elem(&step_threads, &key);
}

/* Nobody is woken: the ring is read once a second. */
static __always_inline void emit(const struct task_struct *task, struct step_thread *thread,
				 u64 probe, u64 now_ns)
{
	struct mark *mark = bpf_ringbuf_reserve(&step_marks, sizeof(*mark), 0);

	if (!mark) {
		thread->lost++;
		return;
	}
	mark->at_ns = now_ns;
	mark->value = now_ns - thread->began_ns;
	mark->process = bpf_get_current_pid_tgid();
	mark->start_ns = thread->process_start_ns;
	mark->cgroup = cgroup_in(task, mark_settings.cgroup_v2);
	mark->what = probe;
	mark->extra = 0;
	bpf_ringbuf_submit(mark, BPF_RB_NO_WAKEUP);
}

/* Each call ends the step that the thread's last call began. */
SEC("uprobe")
int step_call(void *context)
{
	const struct task_struct *task = (const struct task_struct *)bpf_get_current_task_btf();
	u64 probe = bpf_get_attach_cookie(context), now_ns = bpf_ktime_get_boot_ns();
	struct step_thread *thread = thread_of(task, thread_key(task, probe));

	if (!thread)
		return 0;
	if (thread->began_ns)
		emit(task, thread, probe, now_ns);
	thread->began_ns = now_ns;
	return 0;
}

/* The call is the step. One that is left by an exception has no end: the next begins anew. */
SEC("uprobe")
int step_begin(void *context)
{
	const struct task_struct *task = (const struct task_struct *)bpf_get_current_task_btf();
	struct step_thread *thread = thread_of(task, thread_key(task, bpf_get_attach_cookie(context)));

	if (thread)
		thread->began_ns = bpf_ktime_get_boot_ns();
	return 0;
}

SEC("uretprobe")
int step_end(void *context)
{
	const struct task_struct *task = (const struct task_struct *)bpf_get_current_task_btf();
	u64 probe = bpf_get_attach_cookie(context), key = thread_key(task, probe);
	struct step_thread *thread = bpf_map_lookup_elem(&step_threads, &key);

	if (!thread || !thread->began_ns || thread->thread_start_ns != task->start_boottime)
		return 0;
	emit(task, thread, probe, bpf_ktime_get_boot_ns());
	thread->began_ns = 0;
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
