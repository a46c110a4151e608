/* Which probed calls a thread is in.
 *
 * A frame is left when its return is seen. Where no return probe is attached, or a call was left
 * without returning (longjmp, an exception), the next call of the thread finds out: a frame whose
 * stack pointer is not above the new one has ended, and so has one whose code is far from the code
 * that now calls: runtimes call the driver themselves. That is not exact: a program that carries the
 * runtime in itself, calls the driver's launches too and has no return probes can have such a call
 * taken for the runtime's. */
#include "gpu_maps.h"

#define READ_USER(to, bytes, from) bpf_probe_read_user(to, bytes, (const void *)(from))
#include "include/arguments.h"

#define NEAR (1 << 20) /* larger than the code of libcudart */

static __always_inline u32 mark_of(u32 place, u32 group)
{
	u32 index = place * GROUPS + group;
	const u32 *mark = bpf_map_lookup_elem(&returns, &index);

	return mark ? *mark : 0;
}

static __always_inline u64 word_at(u64 address)
{
	u64 word = 0;

	READ_USER(&word, sizeof(word), address);
	return word;
}

/* In a register on arm64; on x86-64 the word at the stack pointer: 130 ns to read. */
static __always_inline u64 return_address(const struct call *call)
{
	return call->caller ? call->caller : word_at(call->stack);
}

static __always_inline bool is_live(const struct frame *frame, const struct call *call)
{
	const struct row_spec *row;
	u32 index = frame->row;

	if (frame->stack <= call->stack)
		return false;
	if (frame->mark) {
		row = bpf_map_lookup_elem(&rows, &index);
		return row && mark_of(frame->place, row->group) == frame->mark;
	}
	return return_address(call) - frame->code + NEAR < 2 * NEAR;
}

static __always_inline struct thread *thread_of(const struct task_struct *task)
{
	u32 id = task->pid;
	struct thread *thread = bpf_map_lookup_elem(&threads, &id);

	if (!thread) {
		bpf_map_update_elem(&threads, &id, &empty_thread, BPF_NOEXIST);
		thread = bpf_map_lookup_elem(&threads, &id);
		if (!thread) {
			lose(LOST_THREADS);
			return 0;
		}
	}
	if (thread->start_ns != task->start_boottime) {
		thread->start_ns = task->start_boottime;
		thread->tgid = task->tgid;
		thread->depth = 0;
	}
	return thread;
}

/* Calls of a kind made inside calls of the same kind are the same deed: the runtime's and the driver's. */
static __always_inline u32 class_of(u32 kind)
{
	return kind == KIND_GRAPH_LAUNCH ? KIND_LAUNCH : kind;
}

/* Leave what has ended, and tell whether a call of the same class goes on. */
static __always_inline bool settle(struct thread *thread, const struct call *call, u32 kind)
{
	bool nested = false, live = false;
	struct frame *frame;

#pragma unroll
	for (int i = FRAMES - 1; i >= 0; i--) {
		if ((u32)i >= thread->depth)
			continue;
		frame = &thread->frames[i];
		if (!live && !is_live(frame, call)) {
			thread->depth = i;
			continue;
		}
		live = true;
		if (class_of(frame->kind) == class_of(kind))
			nested = true;
	}
	return nested;
}

/* Add a frame; none where the thread is in too many already. */
static __always_inline struct frame *push(struct thread *thread, const struct call *call,
					  const struct row_spec *row, u64 cookie)
{
	u32 depth = thread->depth;
	struct frame *frame;

	if (depth >= FRAMES) {
		lose(LOST_FRAMES);
		return 0;
	}
	frame = &thread->frames[depth];
	thread->depth = depth + 1;
	frame->stack = call->stack;
	frame->file = COOKIE_FILE(cookie);
	frame->place = COOKIE_PLACE(cookie);
	frame->row = COOKIE_ROW(cookie);
	frame->kind = row->kind;
	frame->mark = row->flags & ROW_RETURNS ? mark_of(frame->place, row->group) : 0;
	frame->code = call->code;
	frame->sample = 0;
	frame->nested = 0;
	if (frame->mark)
		frame->start_ns = bpf_ktime_get_boot_ns();
	return frame;
}

/* Take the frame of a call that returns, and those inside it that never did. */
static __always_inline struct frame *pop(struct thread *thread, const struct call *call, u64 cookie)
{
	struct frame *frame;

#pragma unroll
	for (int i = FRAMES - 1; i >= 0; i--) {
		if ((u32)i >= thread->depth)
			continue;
		frame = &thread->frames[i];
		if (frame->row == COOKIE_ROW(cookie) && frame->file == COOKIE_FILE(cookie) && frame->mark &&
		    STACK_AT_RETURN(frame->stack) == call->stack) {
			thread->depth = i;
			return frame;
		}
	}
	return 0;
}
