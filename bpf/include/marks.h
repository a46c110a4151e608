/* Marks: single moments of single threads, in a ring that user space reads once a second.
 *
 * Every record of a ring has this one length, so that its bytes are a table: mirrored by
 * collectors/bpf/bpf_maps.py (a test holds the two together). */
#ifndef POINTILLIST_MARKS_H
#define POINTILLIST_MARKS_H

/* With the kernel's 8 bytes before it 64: no record is cut in two by the ring's end. */
struct mark {
	__u64 at_ns;   /* CLOCK_BOOTTIME */
	__u64 value;   /* a step's length; time off the CPU; bytes */
	__u64 process; /* tgid << 32 | thread */
	__u64 start_ns; /* when the process started, CLOCK_BOOTTIME */
	__u64 cgroup;  /* id of its directory in the CPU hierarchy */
	__u64 what;    /* which probe, or kind */
	__u64 extra;   /* newest round trip of the connection in us << 32 | which socket, 0: none */
};

/* What a thread that makes steps is in. Key: thread << 32 | probe. */
struct step_thread {
	__u64 began_ns;        /* of the step that has not ended, 0: none */
	__u64 thread_start_ns; /* another thread of the same number begins anew */
	__u64 tgid;
	__u64 process_start_ns;
	__u64 lost; /* steps that found no room in the ring; only grows */
};

/* Kinds of a process's rhythm, as RhythmKind of collectors/records/activity.py. */
enum rhythm_kind {
	RHYTHM_WAKE,
	RHYTHM_BLOCK,
	RHYTHM_SEND,
	RHYTHM_RECEIVE,
};

#define RHYTHM_KINDS 4
#define RHYTHM_INTERVAL_NS 1000000 /* 1,000 marks a second of a process and kind */
#define RHYTHM_BURST_NS 250000000  /* and 250 at once */

/* One process of a watched cgroup. Key: tgid. No kind crowds out another. */
struct rhythm_row {
	__u64 start_ns; /* another process of the same number begins anew */
	/* When the next mark is due at the full rate: sends and receives by CLOCK_BOOTTIME, the others
	 * by the scheduler's clock. */
	__u64 due_ns[RHYTHM_KINDS];
	__u64 beyond[RHYTHM_KINDS]; /* too early, or without room: only counted */
};

enum gone { GONE_NOWHERE, GONE_PREEMPTED, GONE_ASLEEP, GONE_BLOCKED };

/* One thread of a watched cgroup. Key: thread. */
struct thread_row {
	__u64 start_ns; /* another thread of the same number begins anew */
	__u64 gone_ns;  /* run-queue clock at which it left the CPU */
	__u64 gone;     /* enum gone */
	__u64 slept_ns; /* since it last sent or received */
};

/* Set by the loader before the object is loaded. */
struct mark_settings {
	__u32 cgroup_v2; /* the CPU controller is on the unified hierarchy */
	__u32 unused;
};

#endif
