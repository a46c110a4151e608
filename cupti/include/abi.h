/* What the library needs of CUPTI's binary interface, declared by us: the build needs no CUPTI header, and one object
 * serves CUDA 12 and 13. The offsets are those of CUPTI 12.2 to 13.5; a test compares them with the real headers. */
#pragma once

#include <stdint.h>

enum { ABI_SUCCESS = 0, ABI_MULTIPLE_SUBSCRIBERS = 39 };

enum { ABI_DRIVER_DOMAIN = 1, ABI_DRIVER_GET_VERSION = 2, ABI_EXIT = 1, ABI_FORCED = 1 };

/* The version of CUPTI in which it can be detached and attached again also where CUDA graphs live: CUDA 12.6. */
enum { ABI_DETACHES = 24 };

enum abi_kind {
    ABI_MEMCPY = 1,
    ABI_MEMSET = 2,
    ABI_CONCURRENT_KERNEL = 10,
    ABI_OVERHEAD = 17,
    ABI_MEMCPY_PEER = 22,
    ABI_GRAPH = 51,
};

enum abi_attribute {
    ABI_DEVICE_BUFFER_SIZE = 0,
    ABI_DEVICE_BUFFER_POOL_LIMIT = 2,
    ABI_ZEROED_OUT_BUFFER = 5,
    ABI_DEVICE_BUFFER_PRE_ALLOCATE = 6,
};

struct abi_record {
    uint32_t kind;
} __attribute__((packed));

struct abi_kernel {
    uint32_t kind;
    uint8_t unread0[12];
    uint64_t start, end; /* nanoseconds */
    uint8_t unread1[8];
    uint32_t device, context, stream;
    uint8_t unread2[40];
    uint32_t correlation;
    int64_t grid;
    const char *name;
    uint8_t unread3[8];
    uint64_t queued, submitted; /* 0 unless latency timestamps are on */
    uint8_t unread4[8];
    uint64_t graph_node;
    uint8_t unread5[4];
    uint32_t graph; /* 0 outside graphs */
} __attribute__((packed));

struct abi_copy {
    uint32_t kind;
    uint8_t copy_kind, unread0[3];
    uint64_t bytes, start, end;
    uint32_t device;
} __attribute__((packed));

struct abi_memset {
    uint32_t kind;
    uint8_t unread0[4];
    uint64_t bytes, start, end;
    uint32_t device;
} __attribute__((packed));

struct abi_graph {
    uint32_t kind, correlation;
    uint64_t start, end;
    uint32_t device, graph;
} __attribute__((packed));

struct abi_overhead {
    uint32_t kind, overhead_kind;
    uint8_t unread0[16];
    uint64_t start, end;
} __attribute__((packed));

typedef void (*abi_requested)(uint8_t **buffer, size_t *size, size_t *most_records);
typedef void (*abi_completed)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

struct abi_call_site {
    int site; /* 0 before the call, ABI_EXIT behind it */
};

typedef void (*abi_callback)(void *unused, int domain, uint32_t function, const struct abi_call_site *call);

/* The functions that are called, by the names that CUPTI exports. */
struct abi_calls {
    int (*cuptiGetVersion)(uint32_t *version);
    int (*cuptiActivityRegisterCallbacks)(abi_requested requested, abi_completed completed);
    int (*cuptiActivityEnable)(int kind);
    int (*cuptiActivityDisable)(int kind);
    int (*cuptiActivityFlushAll)(uint32_t flags);
    int (*cuptiActivityGetNextRecord)(uint8_t *buffer, size_t valid, struct abi_record **record);
    int (*cuptiActivityGetNumDroppedRecords)(void *context, uint32_t stream, size_t *dropped);
    int (*cuptiActivitySetAttribute)(int attribute, size_t *size, void *value);
    int (*cuptiSubscribe)(void **subscriber, abi_callback callback, void *unused);
    int (*cuptiEnableCallback)(uint32_t enable, void *subscriber, int domain, uint32_t function);
    int (*cuptiFinalize)(void);
};
