/* Softirq time by vector, device interrupts. Neither nests on one CPU. */
#include "include/state.h"

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq_entry, unsigned int vector)
{
	struct cpu_state *cpu = this_cpu();
	u64 start_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_SOFTIRQ_ENTRY);
	cpu->softirq_start_ns = bpf_ktime_get_ns();
	cost_end(cpu, PROGRAM_SOFTIRQ_ENTRY, start_ns);
	return 0;
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_exit, unsigned int vector)
{
	struct cpu_state *cpu = this_cpu();
	u64 start_ns;

	if (!cpu || vector >= SOFTIRQ_VECTORS)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_SOFTIRQ_EXIT);
	if (cpu->softirq_start_ns) {
		cpu->totals[SOFTIRQ_COUNT + vector]++;
		cpu->totals[SOFTIRQ_NS + vector] += bpf_ktime_get_ns() - cpu->softirq_start_ns;
		cpu->softirq_start_ns = 0;
	}
	cost_end(cpu, PROGRAM_SOFTIRQ_EXIT, start_ns);
	return 0;
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(on_irq_entry, int irq)
{
	struct cpu_state *cpu = this_cpu();
	u64 start_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_IRQ_ENTRY);
	cpu->totals[IRQ_COUNT]++;
	cpu->irq_start_ns = bpf_ktime_get_ns();
	cost_end(cpu, PROGRAM_IRQ_ENTRY, start_ns);
	return 0;
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(on_irq_exit, int irq)
{
	struct cpu_state *cpu = this_cpu();
	u64 start_ns;

	if (!cpu || !cpu->irq_start_ns)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_IRQ_EXIT);
	cpu->totals[IRQ_NS] += bpf_ktime_get_ns() - cpu->irq_start_ns;
	cpu->irq_start_ns = 0;
	cost_end(cpu, PROGRAM_IRQ_EXIT, start_ns);
	return 0;
}
