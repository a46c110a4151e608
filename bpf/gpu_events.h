/* What leaves one by one: names given to handles, and calls of processes that are sampled. Nobody is
 * woken: the rings are read once a second. */
#include "gpu_memory.h"

static __always_inline struct room *take_room(void)
{
	struct room *room;

	/* Unrolled, the key apart: Linux 6.1 and 6.12 call a loop whose counter is the key infinite. */
#pragma unroll
	for (u32 i = 0; i < ROOMS; i++) {
		u32 key = i;

		room = bpf_map_lookup_elem(&rooms, &key);
		if (room && !__sync_lock_test_and_set(&room->taken, 1))
			return room;
	}
	return 0;
}

static __always_inline void emit_name(const struct process *process, u32 index, u64 handle,
				      u64 host, u64 text)
{
	struct room *room = take_room();
	struct name_event *event;
	long length = 0;

	if (!room) {
		lose(LOST_NAMES);
		return;
	}
	event = &room->event;
	event->process = *process;
	event->handle = handle;
	event->host = host;
	event->row = index;
	if (text) {
		length = bpf_probe_read_user_str(event->text, TEXT_BYTES, (const void *)text);
		if (length < 0)
			lose(LOST_UNREADABLE);
	}
	if (length < 0 || length > TEXT_BYTES)
		length = 0;
	event->length = length ? length - 1 : 0;
	length &= 2 * TEXT_BYTES - 1;
	if (length <= TEXT_BYTES &&
	    bpf_ringbuf_output(&names, event, __builtin_offsetof(struct name_event, text) + length,
			       BPF_RB_NO_WAKEUP))
		lose(LOST_NAMES);
	__sync_lock_test_and_set(&room->taken, 0);
}

/* Number the call of a sampled process; 0 for every other. */
static __always_inline u64 begin_sample(void *context, u32 tgid, s32 *stack_id)
{
	const struct control *control = bpf_map_lookup_elem(&controls, &zero);
	struct sampled *sampling;
	long id;

	if (!control || !control->sampled_processes)
		return 0;
	sampling = bpf_map_lookup_elem(&sampled, &tgid);
	if (!sampling)
		return 0;
	*stack_id = -1;
	if (sampling->stacks) {
		id = bpf_get_stackid(context, &stacks, BPF_F_USER_STACK);
		if (id < 0)
			lose(LOST_STACKS);
		else
			*stack_id = id;
	}
	return __sync_fetch_and_add(&sampling->correlation, 1) + 1;
}

static __always_inline void emit_sample(const struct process *process, const struct frame *frame,
					u32 thread, u64 now_ns)
{
	struct sample_event event = {
		.process = *process,
		.stream = frame->stream,
		.event = frame->event,
		.correlation = frame->sample,
		.bytes = frame->size,
		.boottime_ns = frame->mark ? frame->start_ns : now_ns,
		.duration_ns = frame->mark ? now_ns - frame->start_ns : 0,
		.thread = thread,
		.row = frame->row,
		.stack_id = frame->stack_id,
	};

	if (frame->kind == KIND_GRAPH_LAUNCH)
		event.graph = frame->object;
	else
		event.kernel = frame->object;
	if (bpf_ringbuf_output(&samples, &event, sizeof(event), BPF_RB_NO_WAKEUP))
		lose(LOST_SAMPLES);
}
