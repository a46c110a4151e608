/* Maps of the GPU probes. The loader sets their sizes; what finds no room is counted in `losses`. */
#include "include/task.h"
#include "include/gpu.h"

#define MAP(name, kind, entries, key_type, value_type)                                             \
	struct {                                                                                   \
		__uint(type, kind);                                                                \
		__uint(max_entries, entries);                                                      \
		__type(key, key_type);                                                             \
		__type(value, value_type);                                                         \
	} name SEC(".maps")

MAP(rows, BPF_MAP_TYPE_ARRAY, MAX_ROWS, u32, struct row_spec);
/* By place of a file and group: which attaching of return probes is in force, 0: none. */
MAP(returns, BPF_MAP_TYPE_ARRAY, MAX_FILES * GROUPS, u32, u32);
MAP(launches, BPF_MAP_TYPE_PERCPU_HASH, 4096, struct launch_key, struct launch_row);
MAP(calls, BPF_MAP_TYPE_PERCPU_HASH, 4096, struct call_key, struct call_row);
MAP(errors, BPF_MAP_TYPE_PERCPU_HASH, 1024, struct error_key, struct error_row);
MAP(copies, BPF_MAP_TYPE_PERCPU_HASH, 4096, struct copy_key, struct copy_row);
MAP(collectives, BPF_MAP_TYPE_PERCPU_HASH, 1024, struct collective_key, struct collective_row);
MAP(memory, BPF_MAP_TYPE_HASH, 1024, struct process, struct memory_row);
MAP(allocations, BPF_MAP_TYPE_HASH, 65536, struct allocation_key, struct allocation_row);
/* By thread id. A thread that dies in a call leaves a row that the next new thread may take. */
MAP(threads, BPF_MAP_TYPE_LRU_HASH, 16384, u32, struct thread);
MAP(sampled, BPF_MAP_TYPE_HASH, 256, u32, struct sampled);
MAP(controls, BPF_MAP_TYPE_ARRAY, 1, u32, struct control);
/* Room to put a name together; more than one, because a task may lose its CPU while it does. */
#define ROOMS 4
struct room {
	u64 taken;
	struct name_event event;
};
MAP(rooms, BPF_MAP_TYPE_PERCPU_ARRAY, ROOMS, u32, struct room);

struct losses {
	u64 counts[LOST];
};
MAP(losses, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, struct losses);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 512 << 10);
} names SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 2 << 20);
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 4096);
	__uint(key_size, sizeof(u32));
	__uint(value_size, 127 * sizeof(u64));
} stacks SEC(".maps");

static const u32 zero;
static const struct thread empty_thread;
static const struct launch_row empty_launch;
static const struct call_row empty_call;
static const struct error_row empty_error;
static const struct copy_row empty_copy;
static const struct collective_row empty_collective;
static const struct memory_row empty_memory;

/* A row of this CPU, but any task may take the CPU in the middle of an addition: kernels preempt
 * programs of uprobes. What is read before and written after would undo thousands of its calls. */
#define ADD(counter, amount) ((void)__sync_fetch_and_add(&(counter), amount))

static __always_inline void lose(enum lost what)
{
	struct losses *losses_here = bpf_map_lookup_elem(&losses, &zero);

	if (losses_here)
		ADD(losses_here->counts[what], 1);
}

/* Give the row of a key, made where there is room; else the row of OTHER, and the loss is counted. */
#define ROW_OF(map, key_ptr, other_ptr, empty_ptr, what)                                           \
	({                                                                                         \
		void *row_ = bpf_map_lookup_elem(map, key_ptr);                                    \
		if (!row_) {                                                                       \
			bpf_map_update_elem(map, key_ptr, empty_ptr, BPF_NOEXIST);                 \
			row_ = bpf_map_lookup_elem(map, key_ptr);                                  \
			if (!row_) {                                                               \
				lose(what);                                                        \
				row_ = bpf_map_lookup_elem(map, other_ptr);                        \
			}                                                                          \
		}                                                                                  \
		row_;                                                                              \
	})

static __always_inline struct call_row *call_row_of(const struct process *process, u32 row)
{
	struct call_key key = {.process = *process, .row = row};
	struct call_key other = {.row = row};

	return ROW_OF(&calls, &key, &other, &empty_call, LOST_CALL_ROWS);
}
