/* How long a device was busy: the union of intervals that come nearly in order. Pure. */
#pragma once

#include <stdint.h>

#include "include/layout.h"

enum busy_class { BUSY_COMPUTE, BUSY_COPY, BUSY_COLLECTIVE, BUSY_CLASSES };

/* Each thread of the application may fill a buffer of its own, of some 600 records: this many hold those of twelve beside
 * each other twice over. */
enum { PENDING = 16384 };

struct interval {
    uint64_t start, end;
    uint8_t class;
};

struct busy {
    struct interval pending[PENDING]; /* runs by start */
    uint32_t count, last_run;         /* where the last of them begins */
    uint64_t from;                   /* all before is added up */
    uint64_t newest, older;          /* the latest end, and what it was at the last call of busy_settle_older() */
    uint64_t until[BUSY_CLASSES];    /* the latest end of each class among what was added up */
    uint64_t second;                 /* until when two kernels ran at once */
};

/* Take an interval; when the list is full the earlier half is added up. One thread's call at a time, for all devices. */
void busy_add(struct busy *busy, struct device_time *time, uint64_t start, uint64_t end, enum busy_class class);

/* Add up all before the latest end that was known at the call before: one in a while keeps sums fresh where little runs. */
void busy_settle_older(struct busy *busy, struct device_time *time);

/* Add up everything. */
void busy_settle(struct busy *busy, struct device_time *time);
