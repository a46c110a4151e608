#define INTERNET(family) ((family) == 2 || (family) == 10)
#define PEEK 2

TRACEPOINT_PROBE(sock, sock_send_length)
{
	struct cpu_state *cpu = this_cpu();

	if (cpu && args->ret > 0 && INTERNET(args->family)) {
		u64 start_ns = cost_begin(cpu, PROGRAM_SOCK_SEND);

		cpu->totals[NET_SENDS]++;
		cpu->totals[NET_SEND_BYTES] += args->ret;
		cost_end(cpu, PROGRAM_SOCK_SEND, start_ns);
	}
	return 0;
}

TRACEPOINT_PROBE(sock, sock_recv_length)
{
	struct cpu_state *cpu = this_cpu();

	if (cpu && args->ret > 0 && INTERNET(args->family) && !(args->flags & PEEK)) {
		u64 start_ns = cost_begin(cpu, PROGRAM_SOCK_RECEIVE);

		cpu->totals[NET_RECEIVES]++;
		cpu->totals[NET_RECEIVE_BYTES] += args->ret;
		cost_end(cpu, PROGRAM_SOCK_RECEIVE, start_ns);
	}
	return 0;
}
