/* One event per packet sent again, whatever its number of segments. */
TRACEPOINT_PROBE(tcp, tcp_retransmit_skb)
{
	struct cpu_state *cpu = this_cpu();
	struct peer_key key = {}, other = {};
	struct peer_row empty = {}, *row;
	u64 start_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_TCP_RETRANSMIT);
	cpu->totals[TCP_RETRANSMITS]++;
	__builtin_memcpy(&key, args->daddr_v6, sizeof(key));
	row = peers.lookup_or_try_init(&key, &empty);
	if (!row) {
		cpu->totals[PEER_DROPS]++;
		row = peers.lookup(&other);
	}
	if (row)
		row->retransmits++;
	cost_end(cpu, PROGRAM_TCP_RETRANSMIT, start_ns);
	return 0;
}
