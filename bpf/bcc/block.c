/* Latency from the driver on: when a request was made is not among the arguments. */
TRACEPOINT_PROBE(block, block_rq_issue)
{
	struct request_key key = {.sector = args->sector, .device = args->dev};
	u64 now_ns = bpf_ktime_get_ns();

	requests.update(&key, &now_ns);
	return 0;
}

static inline u32 log2_us(u64 ns)
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

TRACEPOINT_PROBE(block, block_rq_complete)
{
	struct cpu_state *cpu = this_cpu();
	struct request_key key = {.sector = args->sector, .device = args->dev};
	struct device_row empty = {}, *row;
	u64 start_ns, total_ns, *issued_ns, bytes = (u64)args->nr_sector * 512;
	u32 device = args->dev, other = OTHER_KEY, bin;
	char kind = args->rwbs[0];

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_BLOCK_COMPLETE);
	row = devices.lookup_or_try_init(&device, &empty);
	if (!row) {
		cpu->totals[DEVICE_DROPS]++;
		row = devices.lookup(&other);
		if (!row)
			return 0;
	}
	if (kind == 'R') {
		row->reads++;
		row->read_bytes += bytes;
		cpu->totals[BLOCK_READS]++;
		cpu->totals[BLOCK_READ_BYTES] += bytes;
	} else if (kind == 'W') {
		row->writes++;
		row->write_bytes += bytes;
		cpu->totals[BLOCK_WRITES]++;
		cpu->totals[BLOCK_WRITE_BYTES] += bytes;
	} else {
		row->others++;
		cpu->totals[BLOCK_OTHERS]++;
	}
	issued_ns = requests.lookup(&key);
	if (issued_ns) {
		total_ns = bpf_ktime_get_ns() - *issued_ns;
		row->total_ns += total_ns;
		cpu->totals[BLOCK_TOTAL_NS] += total_ns;
		bin = log2_us(total_ns);
		if (bin < LATENCY_BINS)
			row->latency_bins[bin]++;
		requests.delete(&key);
	}
	cost_end(cpu, PROGRAM_BLOCK_COMPLETE, start_ns);
	return 0;
}
