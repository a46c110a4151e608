/* GPU calls for kernels without BTF: entries, returns, bytes and errors by process and
 * row. The loader puts ../include/gpu.h and ../include/arguments.h before this file, and PROGRAM_PLACE:
 * a number that it replaces in the finished code, by file and row, for each place it attaches.
 *
 * No kernel struct is read: a process is its number, start_ns stays 0 here. */

struct counted {
	u64 calls;
	u64 nested;
	u64 returned;
	u64 failures;
	u64 bytes;
	u64 hits; /* of returns whose entry was not seen, and of nested calls' returns */
};

/* The outermost call of a class that a thread is in. */
struct mark {
	u64 stack;
	u64 code;
	u64 place;
};

BPF_ARRAY(rows, struct row_spec, MAX_ROWS);
BPF_TABLE("percpu_hash", struct launch_key, struct counted, calls, CALL_ROWS);
BPF_TABLE("percpu_hash", struct error_key, u64, errors, ERROR_ROWS);
BPF_TABLE("lru_hash", u64, struct mark, marks, THREAD_ROWS);
BPF_TABLE("percpu_array", u32, u64, losses, 2);

#define NEAR (1 << 20) /* as in gpu_frames.h */

struct hit {
	struct call call;
	struct process process;
	u64 place;
	u64 thread; /* and class */
	u32 row_index;
	const struct row_spec *row;
};

static __always_inline void lose(u32 what)
{
	u64 *count = losses.lookup(&what);

	if (count)
		__sync_fetch_and_add(count, 1);
}

static __always_inline bool begin(const void *context, struct hit *hit)
{
	u64 id = bpf_get_current_pid_tgid(), class;

	asm volatile("%0 = " PROGRAM_PLACE " ll" : "=r"(hit->place));
	hit->row_index = COOKIE_ROW(hit->place);
	hit->row = rows.lookup(&hit->row_index);
	if (!hit->row)
		return false;
	hit->process.tgid = id >> 32;
	hit->process.file = COOKIE_FILE(hit->place);
	class = hit->row->kind == KIND_GRAPH_LAUNCH ? KIND_LAUNCH : hit->row->kind;
	hit->thread = class << 32 | (u32)id;
	read_call(&hit->call, context);
	return true;
}

static __always_inline struct counted *counted_of(const struct hit *hit, u64 kernel)
{
	struct launch_key key = {.process = hit->process, .kernel = kernel, .row = hit->row_index};
	struct launch_key other = {.row = hit->row_index};
	struct counted empty = {}, *counted = calls.lookup(&key);

	if (counted)
		return counted;
	calls.insert(&key, &empty);
	counted = calls.lookup(&key);
	if (counted)
		return counted;
	lose(0);
	return calls.lookup(&other);
}

/* Tell whether the thread is in a call of the same class: one that began higher in its stack, and whose
 * code is near the code that calls now. */
static __always_inline bool is_nested(const struct hit *hit, const struct mark *mark)
{
	u64 caller = hit->call.caller;

	if (mark->stack <= hit->call.stack)
		return false;
	if (!caller)
		READ_USER(&caller, sizeof(caller), hit->call.stack);
	return caller - mark->code + NEAR < 2 * NEAR;
}

/* Mark the call as the outermost, unless it is inside of one. In place: an update takes 100 ns more. */
static __always_inline bool enter(const struct hit *hit)
{
	struct mark *mark = marks.lookup(&hit->thread), empty = {};

	if (!mark) {
		marks.update(&hit->thread, &empty);
		mark = marks.lookup(&hit->thread);
		if (!mark)
			return true;
	}
	if (is_nested(hit, mark))
		return false;
	mark->stack = hit->call.stack;
	mark->code = hit->call.code;
	mark->place = hit->place;
	return true;
}

int on_entry(void *context)
{
	struct hit hit = {};
	struct counted *counted;
	u64 kernel = 0;

	if (!begin(context, &hit))
		return 0;
	if (hit.row->kind != KIND_COUNT && !enter(&hit)) {
		counted = counted_of(&hit, 0);
		if (counted)
			__sync_fetch_and_add(&counted->nested, 1);
		return 0;
	}
	if (hit.row->kind == KIND_LAUNCH || hit.row->kind == KIND_GRAPH_LAUNCH)
		kernel = argument(&hit.call, hit.row, MEANING_OBJECT);
	counted = counted_of(&hit, kernel);
	if (!counted)
		return 0;
	__sync_fetch_and_add(&counted->calls, 1);
	/* Of an allocation with a pitch the bytes are known to the libbpf programs only. */
	if (!has(hit.row, MEANING_PITCH_OUT) && (has(hit.row, MEANING_SIZE) || hit.row->type_sizes))
		__sync_fetch_and_add(&counted->bytes, bytes_of(&hit.call, hit.row));
	return 0;
}

int on_return(void *context)
{
	struct error_key key = {}, other = {};
	struct counted *counted;
	struct hit hit = {};
	struct mark *mark;
	u64 *failures, none = 0;

	if (!begin(context, &hit))
		return 0;
	counted = counted_of(&hit, 0);
	if (!counted)
		return 0;
	if (hit.row->kind != KIND_COUNT) {
		mark = marks.lookup(&hit.thread);
		if (!mark || mark->place != hit.place || STACK_AT_RETURN(mark->stack) != hit.call.stack) {
			__sync_fetch_and_add(&counted->hits, 1);
			return 0;
		}
		mark->stack = 0; /* below every call: left */
	}
	__sync_fetch_and_add(&counted->returned, 1);
	if (!(hit.row->flags & ROW_STATUS) || !(s32)hit.call.result)
		return 0;
	__sync_fetch_and_add(&counted->failures, 1);
	key.process = hit.process;
	key.row = other.row = hit.row_index;
	key.code = hit.call.result;
	failures = errors.lookup(&key);
	if (!failures) {
		errors.insert(&key, &none);
		failures = errors.lookup(&key);
	}
	if (!failures) {
		lose(1);
		failures = errors.lookup(&other);
	}
	if (failures)
		__sync_fetch_and_add(failures, 1);
	return 0;
}
