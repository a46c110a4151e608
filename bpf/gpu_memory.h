/* Device memory of each process: live bytes and their peak, and when each live allocation was made. */
#include "gpu_frames.h"

#define PEAK_TRIES 8

static __always_inline struct memory_row *memory_row_of(const struct process *owner, u64 exec_id)
{
	struct memory_row *row = bpf_map_lookup_elem(&memory, owner);

	if (!row) {
		bpf_map_update_elem(&memory, owner, &empty_memory, BPF_NOEXIST);
		row = bpf_map_lookup_elem(&memory, owner);
		if (!row) {
			lose(LOST_MEMORY_ROWS);
			return 0;
		}
	}
	if (row->exec_id != exec_id) {
		row->exec_id = exec_id;
		row->live_bytes = 0;
	}
	return row;
}

static __always_inline void raise_peak(struct memory_row *row, u64 live)
{
	u64 peak = row->peak_bytes, seen;

#pragma unroll
	for (int i = 0; i < PEAK_TRIES; i++) {
		if (live <= peak)
			return;
		seen = __sync_val_compare_and_swap(&row->peak_bytes, peak, live);
		if (seen == peak)
			return;
		peak = seen;
	}
}

static __always_inline void allocated(const struct process *owner, u64 exec_id, u64 address, u64 bytes)
{
	struct allocation_key key = {.process = *owner, .address = address};
	struct allocation_row made = {bytes, bpf_ktime_get_boot_ns(), exec_id}, *old;
	struct memory_row *row = memory_row_of(owner, exec_id);

	if (!row || !address)
		return;
	__sync_fetch_and_add(&row->allocations, 1);
	/* Its end was not seen: the address serves again. */
	old = bpf_map_lookup_elem(&allocations, &key);
	if (old && old->exec_id == exec_id)
		__sync_fetch_and_add(&row->live_bytes, -old->bytes);
	if (bpf_map_update_elem(&allocations, &key, &made, BPF_ANY)) {
		__sync_fetch_and_add(&row->untracked, 1);
		lose(LOST_ALLOCATIONS);
		return;
	}
	raise_peak(row, __sync_fetch_and_add(&row->live_bytes, bytes) + bytes);
}

/* At entry: once the call is over, the address may be another thread's new allocation. */
static __always_inline void freed(const struct process *owner, u64 exec_id, u64 address)
{
	struct allocation_key key = {.process = *owner, .address = address};
	struct allocation_row *old = bpf_map_lookup_elem(&allocations, &key);
	struct memory_row *row;
	u64 bytes;

	if (!old)
		return;
	bytes = old->exec_id == exec_id ? old->bytes : 0;
	if (bpf_map_delete_elem(&allocations, &key))
		return;
	row = memory_row_of(owner, exec_id);
	if (!row)
		return;
	__sync_fetch_and_add(&row->live_bytes, -bytes);
	__sync_fetch_and_add(&row->frees, 1);
}
