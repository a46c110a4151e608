TRACEPOINT_PROBE(irq, softirq_entry)
{
	struct cpu_state *cpu = this_cpu();

	if (cpu) {
		u64 start_ns = cost_begin(cpu, PROGRAM_SOFTIRQ_ENTRY);

		cpu->softirq_start_ns = bpf_ktime_get_ns();
		cost_end(cpu, PROGRAM_SOFTIRQ_ENTRY, start_ns);
	}
	return 0;
}

TRACEPOINT_PROBE(irq, softirq_exit)
{
	struct cpu_state *cpu = this_cpu();
	u32 vector = args->vec;

	if (cpu && vector < SOFTIRQ_VECTORS && cpu->softirq_start_ns) {
		u64 start_ns = cost_begin(cpu, PROGRAM_SOFTIRQ_EXIT);

		cpu->totals[SOFTIRQ_COUNT + vector]++;
		cpu->totals[SOFTIRQ_NS + vector] += bpf_ktime_get_ns() - cpu->softirq_start_ns;
		cpu->softirq_start_ns = 0;
		cost_end(cpu, PROGRAM_SOFTIRQ_EXIT, start_ns);
	}
	return 0;
}

TRACEPOINT_PROBE(irq, irq_handler_entry)
{
	struct cpu_state *cpu = this_cpu();

	if (cpu) {
		u64 start_ns = cost_begin(cpu, PROGRAM_IRQ_ENTRY);

		cpu->totals[IRQ_COUNT]++;
		cpu->irq_start_ns = bpf_ktime_get_ns();
		cost_end(cpu, PROGRAM_IRQ_ENTRY, start_ns);
	}
	return 0;
}

TRACEPOINT_PROBE(irq, irq_handler_exit)
{
	struct cpu_state *cpu = this_cpu();

	if (cpu && cpu->irq_start_ns) {
		u64 start_ns = cost_begin(cpu, PROGRAM_IRQ_EXIT);

		cpu->totals[IRQ_NS] += bpf_ktime_get_ns() - cpu->irq_start_ns;
		cpu->irq_start_ns = 0;
		cost_end(cpu, PROGRAM_IRQ_EXIT, start_ns);
	}
	return 0;
}
