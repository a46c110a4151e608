/* The shared table: CUPTI's records added up by (name, device, kind). One writer; knows no CUPTI function and no clock. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "include/abi.h"
#include "include/layout.h"

struct table;

/* Make the shared memory. NULL when the system refuses. */
struct table *table_make(void);

/* The memory's descriptor (close-on-exec, sealed against growing, shrinking and other writers): that of a copy where the
 * application has closed it. -1 when the system refuses. */
int table_descriptor(struct table *table);

/* Number launches anew from the next: those that nobody asked for are not the next window's. */
void table_forget_numbers(struct table *table);

struct header *table_header(struct table *table);

/* Begin and end a change that a reader may see only whole. */
void table_begin(struct table *table);
void table_end(struct table *table);

/* Add one record. */
void table_add(struct table *table, const struct abi_record *record);

/* The longest kernel of late: what one window had counts half in the next. */
uint64_t table_longest_ns(const struct table *table);

/* A window begins. */
void table_age(struct table *table);

/* What tells that CUPTI goes wrong: kernels that had no sound times, and all that graphs launched. */
struct signs {
    uint64_t bad_kernels, graph_kernels;
};

struct signs table_signs(const struct table *table);

/* Devices of which a record came, a bit for each. */
uint32_t table_devices(const struct table *table);

/* Add up the intervals that still wait for others to come before them: all, or those of before the last such call. */
void table_settle(struct table *table);
void table_settle_older(struct table *table);
