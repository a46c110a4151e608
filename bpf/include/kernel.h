/* The few kernel fields that are read, for CO-RE: libbpf finds their offsets in the running
 * kernel's BTF. Order and neighbours mean nothing here. */
#ifndef POINTILLIST_KERNEL_H
#define POINTILLIST_KERNEL_H

#include <linux/bpf.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef _Bool bool;
#define true 1
#define false 0

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct kernfs_node { u64 id; };
struct cgroup { struct kernfs_node *kn; };
struct cgroup_subsys_state { struct cgroup *cgroup; };
struct css_set { struct cgroup *dfl_cgrp; };

struct cfs_bandwidth {
	u64 quota;
	int nr_periods;
	int nr_throttled;
	u64 throttled_time;
};
struct task_group {
	struct cgroup_subsys_state css;
	struct cfs_bandwidth cfs_bandwidth;
};
struct rq { u64 clock; };
struct cfs_rq {
	struct rq *rq;
	u64 throttled_clock_self_time;
};
struct sched_entity {
	u64 sum_exec_runtime;
	struct cfs_rq *cfs_rq;
};
struct sched_info {
	unsigned long long run_delay;
	unsigned long long last_arrival;
	unsigned long long last_queued;
};
struct task_struct {
	int pid;
	int tgid;
	struct task_struct *group_leader;
	u64 start_boottime;
	unsigned int __state;
	unsigned int flags;
	unsigned long nivcsw;
	struct sched_entity se;
	struct sched_info sched_info;
	struct task_group *sched_task_group;
	struct css_set *cgroups;
};

/* Before Linux 5.14. */
struct task_struct___before_5_14 { volatile long state; };

struct gendisk { int major; int first_minor; };
struct request_queue { struct gendisk *disk; };
struct blkcg { struct cgroup_subsys_state css; };
struct blkcg_gq { struct blkcg *blkcg; };
struct bio { struct blkcg_gq *bi_blkg; };
struct request {
	struct request_queue *q;
	unsigned int cmd_flags;
	unsigned int __data_len;
	struct bio *bio;
	u64 start_time_ns;
	u64 io_start_time_ns;
};

/* Before Linux 5.16 the request knew its disk, and its queue did not. */
struct request___before_5_16 { struct gendisk *rq_disk; };

struct in6_addr { u8 bytes[16]; };
struct sock_common {
	unsigned short skc_family;
	u32 skc_daddr;
	struct in6_addr skc_v6_daddr;
};
struct sock {
	struct sock_common __sk_common;
	int sk_wmem_queued;
	int sk_sndbuf;
};
struct tcp_rack { u32 rtt_us; };
struct tcp_sock {
	u32 srtt_us;
	struct tcp_rack rack;
};

/* Their numbers are the running kernel's. */
enum skb_drop_reason {
	SKB_DROP_REASON_QDISC_DROP,
	SKB_DROP_REASON_QDISC_OVERLIMIT,
	SKB_DROP_REASON_QDISC_CONGESTED,
	SKB_DROP_REASON_CPU_BACKLOG,
	SKB_DROP_REASON_FULL_RING,
	SKB_DROP_REASON_SOCKET_RCVBUFF,
	SKB_DROP_REASON_SOCKET_BACKLOG,
};

struct sk_buff { char cb[48]; };
struct tcp_skb_cb { u16 tcp_gso_segs; };

#pragma clang attribute pop

#define AF_INET 2
#define AF_INET6 10
#define MSG_PEEK 2
#define TASK_UNINTERRUPTIBLE 2
#define PF_KTHREAD 0x200000
#define TASK_NOLOAD 0x400 /* idle kernel threads */
#define CLOCK_BOOTTIME 7
#define TIMER_ABSOLUTE 1 /* BPF_F_TIMER_ABS, Linux 6.4 */

#endif
