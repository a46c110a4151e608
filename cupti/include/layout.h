/* The shared memory that one process's library fills and the agent reads: one sealed memfd of fixed size.
 *
 *   0        struct header (4,096 bytes), the devices in it
 *   4096     struct row[ROWS]; row 0 is OTHER: what found no place of its own
 *   NAMES_AT names, each ended by a zero byte; a row says where its name begins
 *
 * The writer makes `generation` odd, writes, and makes it even: a reader copies between two equal even generations.
 * Counts only grow. All integers are little-endian, all times nanoseconds. collectors/gpu_time/segment.py reads this.
 */
#pragma once

#include <stdint.h>

enum {
    LAYOUT_MAGIC = 0x54475450, /* "PTGT" */
    LAYOUT_VERSION = 1,
    HEADER_BYTES = 4096,
    ROWS = 4096,
    BINS = 32, /* bin b: durations of [2^b, 2^(b+1)) ns; the first holds 0 and 1, the last all from 2^31 */
    DEVICES = 16,
    NAME_BYTES = 2048, /* the longest name that is kept, its zero byte included */
    NAMES_BYTES = 1 << 21,
    NO_NAME = 0xffffffff,
};

enum row_kind {
    KERNEL_ROW = 0,
    COPY_ROW = 1,
    MEMSET_ROW = 2,
    GRAPH_ROW = 3, /* whole graphs */
    OTHER_ROW = 4,
    NODE_ROW = 5, /* kernels that graphs launched */
};

enum state {
    STATE_OFF = 0, /* nobody listens, or not now */
    STATE_ON = 1,
    STATE_REFUSED = 2,  /* CUPTI refused: see `error` */
    STATE_OCCUPIED = 3, /* another profiler has CUPTI: it is left alone */
};

struct row {
    uint32_t name_at; /* NO_NAME: none */
    uint16_t device;
    uint8_t kind, detail; /* detail: the direction of a copy, as CUDA numbers it */
    uint64_t count, total_ns, bytes;
    uint32_t bins[BINS];
    uint64_t longest_ns;
    uint64_t delay_ns, delays; /* from submission to start, and of how many that was known */
};

/* Of one device, what its records covered; copies and collectives also where kernels of computation ran beside them. */
struct device_time {
    uint64_t busy_ns, compute_ns, copy_ns, collective_ns;
    uint64_t copy_beside_compute_ns, collective_beside_compute_ns;
    uint64_t kernels_beside_ns; /* time of two kernels or more at once */
    uint64_t late_ns;           /* fell before what was already added up, and is in none of these */
};

struct header {
    uint32_t magic, version;
    uint64_t bytes;
    uint32_t rows, row_bytes, devices, device_bytes;
    uint64_t names_at, names_bytes;
    uint64_t generation;
    uint32_t rows_used, names_used;
    int32_t pid;
    uint32_t state;
    int32_t error; /* CUPTI's code of the call that failed last, 0 for none */
    uint32_t cupti_version;
    uint64_t records, kernels, copies, memsets, graphs;
    uint64_t records_lost_cupti;   /* by CUPTI's own account */
    uint64_t buffers_refused;      /* all of ours were full: CUPTI dropped what would have gone there */
    uint64_t bad_times;            /* records without start or end, or reversed: in no row */
    uint64_t unknown_records;      /* of a kind that was not asked for */
    uint64_t without_row;          /* records that OTHER took */
    uint64_t overheads, overhead_ns; /* CUPTI's own */
    uint64_t windows;              /* times it was switched on */
    uint64_t on_ns;                /* boot-time clock; the present window counts up to `written_ns` */
    uint64_t opened_ns, closed_ns; /* of the newest window; closed_ns 0 while it is open */
    uint64_t written_ns;
    uint64_t switch_on_ns, switch_on_longest_ns; /* CUPTI's calls to start, together and the longest */
    uint64_t switch_off_ns, switch_off_longest_ns;
    uint64_t flush_ns, flush_longest_ns;
    uint64_t detach_ns, detach_longest_ns; /* from the end of a window, when its records are read, to CUPTI's leaving */
    uint64_t detaches, occupied;           /* times it left; windows that another profiler was in the way of */
    uint64_t cpu_ns; /* of the library's own thread */
    /* CUPTI numbers the launches of a context, also those it does not record. `launches` were recorded with a number,
     * and `numbered` were made from the first of them to the last: kernels of graphs are in neither. */
    uint64_t launches, numbered;
    uint64_t without_context; /* launches of more contexts than are kept: in neither */
    uint64_t reserved[4];
    uint8_t uuid[DEVICES][16]; /* by the process's own numbers of its devices; zero while unknown */
    struct device_time device[DEVICES];
};

_Static_assert(sizeof(struct header) <= HEADER_BYTES, "the header fits");

enum {
    ROWS_AT = HEADER_BYTES,
    NAMES_AT = ROWS_AT + ROWS * sizeof(struct row),
    SEGMENT_BYTES = NAMES_AT + NAMES_BYTES,
};
