/* The cgroup of a task: the id (inode) of its directory in the CPU controller's hierarchy. */
#ifndef POINTILLIST_CGROUP_H
#define POINTILLIST_CGROUP_H

#include "kernel.h"

#define ROOT_CGROUP 1 /* id of every hierarchy's root */

/* Tasks of the root may run in a group per session (autogroup), which has no cgroup. */
static __always_inline u64 cgroup_in(const struct task_struct *task, bool unified)
{
	u64 id;

	if (unified)
		id = task->cgroups->dfl_cgrp->kn->id;
	else
		id = task->sched_task_group->css.cgroup->kn->id;
	return id ? id : ROOT_CGROUP;
}

#endif
