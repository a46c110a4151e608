/* Sockets: bytes by cgroup and by peer, what waits in send queues, TCP retransmits. */
#include "rhythm.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1024);
	__type(key, struct peer_key);
	__type(value, struct peer_row);
} peers SEC(".maps");

static const struct peer_row empty_peer;
static const struct peer_key other_peer;

static __always_inline bool is_internet(const struct sock *sk)
{
	u16 family = sk->__sk_common.skc_family;

	return family == AF_INET || family == AF_INET6;
}

static __always_inline struct peer_row *peer_row_of(struct cpu_state *cpu, const struct sock *sk)
{
	struct peer_key key = {};

	if (sk->__sk_common.skc_family == AF_INET6) {
		bpf_probe_read_kernel(&key, sizeof(key),
				      __builtin_preserve_access_index(&sk->__sk_common.skc_v6_daddr));
	} else {
		u32 address = sk->__sk_common.skc_daddr;

		key.address[10] = key.address[11] = 0xff;
		__builtin_memcpy(&key.address[12], &address, sizeof(address));
	}
	return ROW_OF(&peers, &key, &other_peer, &empty_peer, cpu, PEER_DROPS);
}

static __always_inline void add_round_trip(struct cpu_state *cpu, struct sock *sk)
{
	const struct tcp_sock *tcp = (const void *)bpf_skc_to_tcp_sock(sk);

	if (!tcp || !tcp->srtt_us)
		return;
	cpu->totals[NET_SRTTS]++;
	cpu->totals[NET_SRTT_US] += tcp->srtt_us >> 3;
}

static __always_inline void add_sent(struct cpu_state *cpu, struct sock *sk, u32 bytes, u64 wait_ns)
{
	struct cgroup_row *row = current_cgroup_row(cpu);
	struct peer_row *peer = peer_row_of(cpu, sk);

	/* A queue that is still this full after the send was full during it. */
	if (sk->sk_wmem_queued * 2 < sk->sk_sndbuf)
		wait_ns = 0;
	add_round_trip(cpu, sk);
	cpu->totals[NET_SEND_WAIT_NS] += wait_ns;

	cpu->totals[NET_SENDS]++;
	cpu->totals[NET_SEND_BYTES] += bytes;
	cpu->totals[NET_SEND_QUEUE_BYTES] += sk->sk_wmem_queued;
	if (row) {
		row->send_bytes += bytes;
		row->send_wait_ns += wait_ns;
	}
	if (peer)
		peer->send_bytes += bytes;
}

static __always_inline void add_received(struct cpu_state *cpu, const struct sock *sk, u32 bytes,
					 u64 wait_ns)
{
	struct cgroup_row *row = current_cgroup_row(cpu);
	struct peer_row *peer = peer_row_of(cpu, sk);

	cpu->totals[NET_RECEIVE_WAIT_NS] += wait_ns;
	cpu->totals[NET_RECEIVES]++;
	cpu->totals[NET_RECEIVE_BYTES] += bytes;
	if (row) {
		row->receive_bytes += bytes;
		row->receive_wait_ns += wait_ns;
	}
	if (peer)
		peer->receive_bytes += bytes;
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(on_sock_send, struct sock *sk, int length)
{
	struct cpu_state *cpu = this_cpu();
	u64 start_ns, wait_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_SOCK_SEND);
	if (length > 0) {
		wait_ns = note_network(cpu, sk, RHYTHM_SEND, length);
		if (is_internet(sk))
			add_sent(cpu, sk, length, wait_ns);
	}
	cost_end(cpu, PROGRAM_SOCK_SEND, start_ns);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(on_sock_receive, struct sock *sk, int length, int flags)
{
	struct cpu_state *cpu = this_cpu();
	u64 start_ns, wait_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_SOCK_RECEIVE);
	if (length > 0 && !(flags & MSG_PEEK)) {
		wait_ns = note_network(cpu, sk, RHYTHM_RECEIVE, length);
		if (is_internet(sk))
			add_received(cpu, sk, length, wait_ns);
	}
	cost_end(cpu, PROGRAM_SOCK_RECEIVE, start_ns);
	return 0;
}

static __always_inline void add_retransmits(struct cpu_state *cpu, const struct sock *sk, u32 count)
{
	struct peer_row *peer;

	cpu->totals[TCP_RETRANSMITS] += count;
	peer = peer_row_of(cpu, sk);
	if (peer)
		peer->retransmits += count;
}

/* One event may be many segments: the kernel's own counter adds them all. */
SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(on_tcp_retransmit, const struct sock *sk, const struct sk_buff *skb)
{
	struct cpu_state *cpu = this_cpu();
	const struct tcp_skb_cb *segment;
	u16 count = 0;
	u64 start_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_TCP_RETRANSMIT);
	segment = (const void *)__builtin_preserve_access_index(&skb->cb);
	bpf_core_read(&count, sizeof(count), &segment->tcp_gso_segs);
	add_retransmits(cpu, sk, count ? count : 1);
	cost_end(cpu, PROGRAM_TCP_RETRANSMIT, start_ns);
	return 0;
}

SEC("tp_btf/tcp_retransmit_synack")
int BPF_PROG(on_tcp_retransmit_synack, const struct sock *sk)
{
	struct cpu_state *cpu = this_cpu();
	u64 start_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_TCP_RETRANSMIT_SYNACK);
	/* sk is the listener: the peer is not in it. */
	cpu->totals[TCP_RETRANSMITS]++;
	cost_end(cpu, PROGRAM_TCP_RETRANSMIT_SYNACK, start_ns);
	return 0;
}

/* Whether a packet found no room in a queue: of a qdisc, a CPU's backlog, a socket. */
static __always_inline bool found_no_room(u32 reason)
{
#define IS(name)                                                                                   \
	(bpf_core_enum_value_exists(enum skb_drop_reason, name) &&                                 \
	 reason == bpf_core_enum_value(enum skb_drop_reason, name))
	return IS(SKB_DROP_REASON_QDISC_DROP) || IS(SKB_DROP_REASON_QDISC_OVERLIMIT) ||
	       IS(SKB_DROP_REASON_QDISC_CONGESTED) || IS(SKB_DROP_REASON_CPU_BACKLOG) ||
	       IS(SKB_DROP_REASON_FULL_RING) || IS(SKB_DROP_REASON_SOCKET_RCVBUFF) ||
	       IS(SKB_DROP_REASON_SOCKET_BACKLOG);
#undef IS
}

SEC("tp_btf/kfree_skb")
int BPF_PROG(on_packet_drop, const struct sk_buff *skb, void *location, u32 reason)
{
	struct cpu_state *cpu = this_cpu();
	u64 start_ns;

	if (!cpu)
		return 0;
	start_ns = cost_begin(cpu, PROGRAM_PACKET_DROP);
	if (found_no_room(reason))
		cpu->totals[QUEUE_DROPS]++;
	cost_end(cpu, PROGRAM_PACKET_DROP, start_ns);
	return 0;
}
