/* Block I/O: the request itself carries when it was made and when its driver got it. */
#include "include/state.h"

#define OPERATION_MASK 0xff
#define OPERATION_READ 0
#define OPERATION_WRITE 1

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 128);
	__type(key, u32);
	__type(value, struct device_row);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 512);
	__type(key, u64);
	__type(value, struct block_cgroup_row);
} block_cgroups SEC(".maps");

static const struct device_row empty_device;
static const struct block_cgroup_row empty_block_cgroup;

static __always_inline u32 log2_us(u64 ns)
{
	u64 us = ns / 1000;
	u32 bin = 0;

#pragma unroll
	for (int step = 16; step; step >>= 1)
		if (us >> step) {
			us >>= step;
			bin += step;
		}
	return bin < LATENCY_BINS ? bin : LATENCY_BINS - 1;
}

static __always_inline void add_block_bytes(struct cpu_state *cpu, const struct request *rq,
					    u32 operation, u32 bytes, u32 ended)
{
	const struct bio *bio = rq->bio;
	const u64 other = OTHER_KEY;
	struct block_cgroup_row *row;
	u64 cgroup;

	if (!bio)
		return;
	cgroup = bio->bi_blkg->blkcg->css.cgroup->kn->id;
	row = ROW_OF(&block_cgroups, &cgroup, &other, &empty_block_cgroup, cpu, BLOCK_CGROUP_DROPS);
	if (!row)
		return;
	row->ios += ended;
	if (operation == OPERATION_READ)
		row->read_bytes += bytes;
	else if (operation == OPERATION_WRITE)
		row->write_bytes += bytes;
}

static __always_inline void add_request(struct cpu_state *cpu, struct device_row *row,
					const struct request *rq, u32 operation)
{
	u64 made_ns = rq->start_time_ns, given_ns = rq->io_start_time_ns, total_ns, queue_ns;

	if (operation == OPERATION_READ) {
		row->reads++;
		cpu->totals[BLOCK_READS]++;
	} else if (operation == OPERATION_WRITE) {
		row->writes++;
		cpu->totals[BLOCK_WRITES]++;
	} else {
		row->others++;
		cpu->totals[BLOCK_OTHERS]++;
	}
	if (!made_ns)
		return;
	total_ns = bpf_ktime_get_ns() - made_ns;
	queue_ns = given_ns > made_ns ? given_ns - made_ns : 0;
	row->total_ns += total_ns;
	row->queue_ns += queue_ns;
	row->latency_bins[log2_us(total_ns)]++;
	cpu->totals[BLOCK_TOTAL_NS] += total_ns;
	cpu->totals[BLOCK_QUEUE_NS] += queue_ns;
}

static __always_inline const struct gendisk *disk_of(const struct request *rq)
{
	if (bpf_core_field_exists(struct request_queue, disk))
		return rq->q->disk;
	return ((const struct request___before_5_16 *)rq)->rq_disk;
}

/* Called for each part of a request that ends; the last one takes all that is left of it. */
static __always_inline void complete(struct cpu_state *cpu, const struct request *rq, u32 bytes)
{
	const struct gendisk *disk = disk_of(rq);
	u32 operation = rq->cmd_flags & OPERATION_MASK, ended = bytes >= rq->__data_len, device;
	const u32 other = OTHER_KEY;
	struct device_row *row;

	device = disk ? (u32)disk->major << 20 | (u32)disk->first_minor : 0;
	row = ROW_OF(&devices, &device, &other, &empty_device, cpu, DEVICE_DROPS);
	if (!row)
		return;
	if (operation == OPERATION_READ) {
		row->read_bytes += bytes;
		cpu->totals[BLOCK_READ_BYTES] += bytes;
	} else if (operation == OPERATION_WRITE) {
		row->write_bytes += bytes;
		cpu->totals[BLOCK_WRITE_BYTES] += bytes;
	}
	if (ended)
		add_request(cpu, row, rq, operation);
	add_block_bytes(cpu, rq, operation, bytes, ended);
}

SEC("tp_btf/block_rq_complete")
int BPF_PROG(on_block_complete, struct request *rq, u8 error, unsigned int bytes)
{
	struct cpu_state *cpu = this_cpu();
	u64 start_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_BLOCK_COMPLETE);
	complete(cpu, rq, bytes);
	cost_end(cpu, PROGRAM_BLOCK_COMPLETE, start_ns);
	return 0;
}
