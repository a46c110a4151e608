TRACEPOINT_PROBE(exceptions, page_fault_user)
{
	struct cpu_state *cpu = this_cpu();

	if (cpu) {
		u64 start_ns = cost_begin(cpu, PROGRAM_PAGE_FAULT);

		cpu->totals[PAGE_FAULTS]++;
		cost_end(cpu, PROGRAM_PAGE_FAULT, start_ns);
	}
	return 0;
}
