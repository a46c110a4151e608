/* What the GPU probes read of a task, and the names of types; libbpf finds the offsets (CO-RE). */
#ifndef POINTILLIST_TASK_H
#define POINTILLIST_TASK_H

#include <linux/bpf.h>

typedef __u16 u16;
typedef __u32 u32;
typedef __s32 s32;
typedef __s64 s64;
typedef __u64 u64;
typedef _Bool bool;
#define true 1
#define false 0

#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct task_struct {
	int pid;
	int tgid;
	struct task_struct *group_leader;
	u64 start_boottime;
	u64 self_exec_id;
};

#pragma clang attribute pop

#endif
