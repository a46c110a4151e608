/* GPU probes: generic programs that read what a call means from its row of the table.
 *
 * The attach cookie names file and row. Programs by how often they run: gpu_launch, gpu_entry for all
 * other calls, gpu_count for what is only counted, gpu_return for every return. */
#include "gpu_events.h"

#define SHARED_MASK 63 /* a kernel's first launch on each CPU, then one in 64 */

/* Where a place takes long to let go: a group whose launches count only while its mark is in force. */
const volatile u32 gate SEC(".rodata.gate") = GROUPS;

struct hit {
	struct process process;
	struct call call;
	u64 cookie;
	u32 row_index;
	const struct row_spec *row;
	const struct task_struct *task;
};

static __always_inline bool begin(struct registers *context, struct hit *hit)
{
	u64 cookie = bpf_get_attach_cookie(context);

	hit->cookie = cookie;
	hit->row_index = COOKIE_ROW(cookie);
	hit->row = bpf_map_lookup_elem(&rows, &hit->row_index);
	if (!hit->row)
		return false;
	hit->task = (const struct task_struct *)bpf_get_current_task_btf();
	hit->process.start_ns = hit->task->group_leader->start_boottime;
	hit->process.tgid = hit->task->tgid;
	hit->process.file = COOKIE_FILE(cookie);
	read_call(&hit->call, context);
	return true;
}

/* Push the call's frame; `nested` where it is part of one that is counted already. */
static __always_inline struct frame *enter(const struct hit *hit, bool *nested)
{
	struct thread *thread = thread_of(hit->task);
	struct frame *frame;

	*nested = false;
	if (!thread)
		return 0;
	*nested = settle(thread, &hit->call, hit->row->kind);
	frame = push(thread, &hit->call, hit->row, hit->cookie);
	if (frame && *nested)
		frame->nested = 1;
	return frame;
}

static __always_inline void sample(void *context, const struct hit *hit, struct frame *frame)
{
	frame->sample = begin_sample(context, hit->process.tgid, &frame->stack_id);
	if (!frame->sample)
		return;
	frame->stream = argument(&hit->call, hit->row, MEANING_STREAM);
	frame->event = argument(&hit->call, hit->row, MEANING_EVENT);
	if (!frame->mark)
		emit_sample(&hit->process, frame, hit->task->pid, bpf_ktime_get_boot_ns());
}

static __always_inline void count_nested(const struct hit *hit)
{
	struct call_row *call = call_row_of(&hit->process, hit->row_index);

	if (call)
		ADD(call->nested, 1);
}

SEC("uprobe")
int gpu_launch(struct registers *regs)
{
	struct launch_key key = {}, other = {};
	struct launch_row *launch;
	struct frame *frame;
	struct hit hit = {};
	u64 blocks, shared;
	bool nested;

	if (!begin(regs, &hit))
		return 0;
	if (gate < GROUPS && !mark_of(COOKIE_PLACE(hit.cookie), gate))
		return 0;
	frame = enter(&hit, &nested);
	if (nested) {
		count_nested(&hit);
		return 0;
	}
	key.process = hit.process;
	key.kernel = argument(&hit.call, hit.row, MEANING_OBJECT);
	key.row = hit.row_index;
	other.row = hit.row_index;
	launch = ROW_OF(&launches, &key, &other, &empty_launch, LOST_LAUNCH_ROWS);
	if (launch) {
		blocks = extent(&hit.call, hit.row, MEANING_GRID, MEANING_GRID_X);
		/* On x86-64 it lies on the stack, 130 ns to read: a kernel hardly ever changes it. */
		if (!(launch->launches & SHARED_MASK)) {
			shared = (u32)argument(&hit.call, hit.row, MEANING_SHARED);
			if (shared > launch->shared_bytes)
				launch->shared_bytes = shared;
		}
		if (!launch->launches)
			launch->caller = return_address(&hit.call);
		ADD(launch->launches, 1);
		ADD(launch->blocks, blocks);
		ADD(launch->threads, blocks * extent(&hit.call, hit.row, MEANING_BLOCK, MEANING_BLOCK_X));
	}
	if (frame) {
		frame->object = key.kernel;
		frame->size = 0;
		sample(regs, &hit, frame);
	}
	return 0;
}

static __always_inline void count_copy(const struct hit *hit, u32 direction, u64 bytes)
{
	struct copy_key key = {.process = hit->process, .direction = direction, .bin = size_bin(bytes)};
	struct copy_key other = {.direction = direction, .bin = key.bin};
	struct copy_row *copy = ROW_OF(&copies, &key, &other, &empty_copy, LOST_COPY_ROWS);

	if (copy) {
		ADD(copy->copies, 1);
		ADD(copy->bytes, bytes);
	}
}

static __always_inline struct collective_row *collective_row_of(const struct hit *hit, u64 communicator)
{
	struct collective_key key = {
		.process = hit->process, .communicator = communicator, .row = hit->row_index};
	struct collective_key other = {.row = hit->row_index};

	return ROW_OF(&collectives, &key, &other, &empty_collective, LOST_COLLECTIVE_ROWS);
}

static __always_inline void count_collective(const struct hit *hit, u64 communicator, u64 bytes)
{
	struct collective_row *collective = collective_row_of(hit, communicator);

	if (collective) {
		ADD(collective->calls, 1);
		ADD(collective->bytes, bytes);
	}
}

static __always_inline void count_call(const struct hit *hit, u64 bytes)
{
	struct call_row *call = call_row_of(&hit->process, hit->row_index);

	if (call) {
		ADD(call->calls, 1);
		ADD(call->bytes, bytes);
	}
}

static __always_inline struct process owner_of(const struct hit *hit)
{
	struct process owner = hit->process;

	owner.file = 0;
	return owner;
}

/* A name is read when the call returns: who looked it up has read it then, and the page is there. */
static __always_inline void note_name(const struct hit *hit, struct frame *frame)
{
	bool told = has(hit->row, MEANING_NAME_OUT);

	frame->object = argument(&hit->call, hit->row, MEANING_OBJECT);
	frame->out = argument(&hit->call, hit->row, told ? MEANING_NAME_OUT : MEANING_OUT);
	frame->text = argument(&hit->call, hit->row, MEANING_NAME);
	frame->host = argument(&hit->call, hit->row, MEANING_HOST);
}

static __always_inline void note_allocation(const struct hit *hit, struct frame *frame)
{
	frame->out = argument(&hit->call, hit->row, MEANING_OUT);
	frame->pitch = argument(&hit->call, hit->row, MEANING_PITCH_OUT);
}

SEC("uprobe")
int gpu_entry(struct registers *regs)
{
	struct process owner;
	struct frame *frame;
	struct hit hit = {};
	u64 object, bytes;
	bool nested;
	u32 kind;

	if (!begin(regs, &hit))
		return 0;
	kind = hit.row->kind;
	frame = enter(&hit, &nested);
	if (kind == KIND_NAME && frame)
		note_name(&hit, frame);
	if (nested) {
		count_nested(&hit);
		return 0;
	}
	object = argument(&hit.call, hit.row, MEANING_OBJECT);
	bytes = bytes_of(&hit.call, hit.row);
	/* What an allocation took is known when it has succeeded. */
	count_call(&hit, kind == KIND_ALLOCATE ? 0 : bytes);
	if (kind == KIND_COPY)
		count_copy(&hit, direction_of(&hit.call, hit.row), bytes);
	else if (kind == KIND_COLLECTIVE)
		count_collective(&hit, object, bytes);
	else if (kind == KIND_FREE && hit.row->flags & ROW_DEVICE) {
		owner = owner_of(&hit);
		freed(&owner, hit.task->self_exec_id, object);
	}
	if (!frame)
		return 0;
	frame->object = object;
	frame->size = bytes;
	if (kind == KIND_ALLOCATE)
		note_allocation(&hit, frame);
	sample(regs, &hit, frame);
	return 0;
}

SEC("uprobe")
int gpu_count(struct registers *regs)
{
	struct hit hit = {};

	if (begin(regs, &hit))
		count_call(&hit, bytes_of(&hit.call, hit.row));
	return 0;
}

static __always_inline u64 pointer_at(u64 address)
{
	u64 pointer = 0;

	if (address && bpf_probe_read_user(&pointer, sizeof(pointer), (const void *)address))
		lose(LOST_UNREADABLE);
	return pointer;
}

static __always_inline void end_allocation(const struct hit *hit, struct call_row *call,
					   struct frame *frame)
{
	struct process owner = owner_of(hit);

	if (frame->pitch)
		frame->size *= pointer_at(frame->pitch);
	ADD(call->bytes, frame->size);
	if (hit->row->flags & ROW_DEVICE)
		allocated(&owner, hit->task->self_exec_id, pointer_at(frame->out), frame->size);
}

static __always_inline void end_name(const struct hit *hit, const struct frame *frame)
{
	u64 written = pointer_at(frame->out);

	if (has(hit->row, MEANING_NAME_OUT))
		emit_name(&hit->process, hit->row_index, frame->object, 0, written);
	else
		emit_name(&hit->process, hit->row_index, written, frame->host, frame->text);
}

static __always_inline void count_failure(const struct hit *hit, s32 code)
{
	struct error_key key = {.process = hit->process, .row = hit->row_index, .code = code};
	struct error_key other = {.row = hit->row_index};
	struct error_row *error = ROW_OF(&errors, &key, &other, &empty_error, LOST_ERROR_ROWS);

	if (error)
		ADD(error->failures, 1);
}

SEC("uretprobe")
int gpu_return(struct registers *regs)
{
	struct collective_row *collective;
	struct thread *thread;
	struct frame *frame = 0;
	struct call_row *call;
	struct hit hit = {};
	u64 now_ns, wait_ns;
	bool failed;
	s32 code;

	if (!begin(regs, &hit))
		return 0;
	thread = thread_of(hit.task);
	if (thread)
		frame = pop(thread, &hit.call, hit.cookie);
	call = call_row_of(&hit.process, hit.row_index);
	if (!call)
		return 0;
	code = hit.call.result;
	failed = hit.row->flags & ROW_STATUS && code;
	if (frame && hit.row->kind == KIND_NAME && !failed)
		end_name(&hit, frame);
	/* Begun before the probe was attached, or part of a call that counts itself. */
	if (!frame || frame->nested) {
		ADD(call->hits, 1);
		return 0;
	}
	now_ns = bpf_ktime_get_boot_ns();
	wait_ns = now_ns - frame->start_ns;
	ADD(call->returned, 1);
	ADD(call->wait_ns, wait_ns);
	if (failed) {
		ADD(call->failures, 1);
		count_failure(&hit, code);
	} else if (hit.row->kind == KIND_ALLOCATE) {
		end_allocation(&hit, call, frame);
	}
	if (hit.row->kind == KIND_COLLECTIVE) {
		collective = collective_row_of(&hit, frame->object);
		if (collective)
			ADD(collective->duration_ns, wait_ns);
	}
	if (frame->sample)
		emit_sample(&hit.process, frame, hit.task->pid, now_ns);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
