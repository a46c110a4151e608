/* Layouts of the GPU probes, shared by the programs and by collectors/gpu_calls/readout.py (a test holds
 * the two together). Counters only grow; every pad is a field of its own, because keys are hashed. */
#ifndef POINTILLIST_GPU_H
#define POINTILLIST_GPU_H

#include <linux/types.h>

#define MAX_ROWS 512
#define MAX_FILES 1024 /* attached at the same time */
#define GROUPS 8
#define FRAMES 4       /* probed calls inside each other in one thread */
#define ELEMENT_SIZES 16
#define TEXT_BYTES 1024
#define SIZE_BINS 48   /* log2 of bytes, the last open */

/* In the order of collectors/gpu_calls/probe_table.py. */
enum kind {
	KIND_COUNT,
	KIND_LAUNCH,
	KIND_GRAPH_LAUNCH,
	KIND_ALLOCATE,
	KIND_FREE,
	KIND_COPY,
	KIND_MEMSET,
	KIND_WAIT,
	KIND_NAME,
	KIND_COLLECTIVE,
};

enum meaning {
	MEANING_OBJECT,
	MEANING_OUT,
	MEANING_GRID,
	MEANING_GRID_X,
	MEANING_BLOCK,
	MEANING_BLOCK_X,
	MEANING_SHARED,
	MEANING_STREAM,
	MEANING_EVENT,
	MEANING_SIZE,
	MEANING_SIZE_Y,
	MEANING_SIZE_Z,
	MEANING_PITCH_OUT,
	MEANING_DATATYPE,
	MEANING_DIRECTION,
	MEANING_NAME,
	MEANING_HOST,
	MEANING_NAME_OUT,
	MEANINGS,
};

/* Where an argument lies. */
struct place {
	__u8 slot;    /* 1 is the first integer argument, 0: the call has no such argument */
	__u8 behind;  /* 1: the slot is a pointer, the value lies `offset` behind it */
	__u16 offset;
};

enum row_flag {
	ROW_STATUS = 1,  /* returns an error code */
	ROW_DEVICE = 2,  /* memory of the device */
	ROW_RETURNS = 4, /* its return may be probed */
};

/* An attach cookie names the file, its place among those attached, and the row. */
#define COOKIE_FILE(cookie) ((cookie) >> 32)
#define COOKIE_PLACE(cookie) ((cookie) >> 16 & 0xffff)
#define COOKIE_ROW(cookie) ((cookie) & 0xffff)

/* A row of the table. */
struct row_spec {
	__u8 kind;
	__u8 flags;
	__u8 direction;
	__u8 group;        /* of its return probe: the index of its mark in `returns` */
	__u8 type_sizes;   /* of element_sizes in use; 1 and no datatype: the size of every element */
	__u8 unused[3];
	__u8 element_sizes[ELEMENT_SIZES];
	struct place places[MEANINGS];
};

struct process {
	__u64 start_ns;
	__u32 tgid;
	__u32 file; /* 0 where the row belongs to no file, and in the rows of OTHER */
};

struct launch_key {
	struct process process;
	__u64 kernel; /* 0: OTHER */
	__u64 row;
};

struct launch_row {
	__u64 launches;
	__u64 blocks;
	__u64 threads;
	__u64 shared_bytes; /* the largest seen: take the largest of all CPUs */
	__u64 caller;       /* where the call returns to, as each CPU's first launch had it */
};

struct call_key {
	struct process process;
	__u64 row;
};

struct call_row {
	__u64 calls; /* launches are in their own rows instead */
	__u64 nested;
	__u64 returned;
	__u64 failures;
	__u64 wait_ns;
	__u64 bytes;
	__u64 hits; /* of return probes whose entry was not seen, and of nested calls' returns */
};

struct error_key {
	struct process process;
	__u32 row;
	__s32 code;
};

struct error_row {
	__u64 failures;
};

struct copy_key {
	struct process process;
	__u32 direction;
	__u32 bin;
};

struct copy_row {
	__u64 copies;
	__u64 bytes;
};

struct collective_key {
	struct process process;
	__u64 communicator;
	__u64 row;
};

struct collective_row {
	__u64 calls;
	__u64 bytes;
	__u64 duration_ns;
};

/* One process's device memory, shared by the CPUs. */
struct memory_row {
	__u64 live_bytes;
	__u64 peak_bytes;
	__u64 allocations;
	__u64 frees;
	__u64 untracked;
	__u64 exec_id; /* memory ends with the program that a process runs */
};

struct allocation_key {
	struct process process;
	__u64 address;
};

struct allocation_row {
	__u64 bytes;
	__u64 boottime_ns;
	__u64 exec_id;
};

/* A probed call that a thread is in. */
struct frame {
	__u64 stack;  /* stack pointer at entry */
	__u64 code;   /* the probed instruction's address */
	__u64 start_ns;
	__u64 object;
	__u64 out;
	__u64 size;  /* bytes, or the lines of a pitched allocation */
	__u64 pitch; /* address of the pitch */
	__u64 text;
	__u64 host;
	__u64 stream;
	__u64 event;
	__u64 sample; /* correlation id, 0: not sampled */
	__u32 file;
	__u32 mark; /* of the return probe when the call began, 0: none was attached */
	__s32 stack_id;
	__u16 row;
	__u16 place; /* of the file among those attached */
	__u64 kind;
	__u64 nested;
};

struct thread {
	__u64 start_ns; /* a thread id used again has another */
	__u32 tgid;
	__u32 depth;
	struct frame frames[FRAMES];
};

struct sampled {
	__u64 correlation; /* counts the process's calls */
	__u64 stacks;      /* 1: with the user's stack */
};

struct control {
	__u64 sampled_processes;
};

struct name_event {
	struct process process;
	__u64 handle;
	__u64 host;
	__u32 row;
	__u32 length;
	char text[TEXT_BYTES];
};

struct sample_event {
	struct process process;
	__u64 kernel;
	__u64 stream;
	__u64 graph;
	__u64 event;
	__u64 correlation;
	__u64 bytes;
	__u64 boottime_ns;
	__u64 duration_ns;
	__u32 thread;
	__u32 row;
	__s64 stack_id;
};

/* What found no room. */
enum lost {
	LOST_LAUNCH_ROWS,
	LOST_CALL_ROWS,
	LOST_ERROR_ROWS,
	LOST_COPY_ROWS,
	LOST_COLLECTIVE_ROWS,
	LOST_MEMORY_ROWS,
	LOST_ALLOCATIONS,
	LOST_THREADS,
	LOST_FRAMES,
	LOST_NAMES,
	LOST_SAMPLES,
	LOST_STACKS,
	LOST_UNREADABLE,
	LOST,
};

#endif
