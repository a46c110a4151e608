/* Headers that do not match the kernel read its structs as garbage, silently: compare one field
 * with what a helper says. No metric here reads a struct; this says whether one could. */
#include <linux/sched.h>

BPF_ARRAY(header_checks, u64, 2); /* agreed, differed */

RAW_TRACEPOINT_PROBE(sched_switch)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	u32 pid = 0, agreed = 0, differed = 1;

	bpf_probe_read_kernel(&pid, sizeof(pid), &task->pid);
	header_checks.increment(pid == (u32)bpf_get_current_pid_tgid() ? agreed : differed);
	return 0;
}
