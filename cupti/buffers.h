/* The buffers that CUPTI fills: a fixed number, handed out and taken back from any thread. Full ones wait for the one
 * thread that reads them. When none is free CUPTI gets none and drops records: memory stays bounded. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { BUFFER_BYTES = 128 << 10, BUFFERS = 32, WAKES = 4 };

struct filled {
    uint8_t *bytes; /* NULL: nothing waits */
    size_t valid;
    void *context;
    uint32_t stream;
};

/* Reserve the memory, which is touched as it is used. 0, or -1 when the system refuses. */
int buffers_make(void);

/* A free buffer of BUFFER_BYTES, or NULL (counted). */
uint8_t *buffers_take(void);

/* Put a filled buffer in line; when WAKES wait the reader is woken. */
void buffers_fill(struct filled filled);

/* The next filled buffer, without waiting. */
struct filled buffers_next(void);

/* CUPTI has left: every buffer is free again, also those it gave back last, which nothing can read without it. */
void buffers_reset(void);

/* Give a buffer back. */
void buffers_give(uint8_t *bytes);

/* Wait until WAKES buffers are filled, at most so long. */
void buffers_wait(uint32_t milliseconds);

/* How many were refused since the last call. */
uint64_t buffers_refused(void);
