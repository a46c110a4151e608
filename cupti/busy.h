/* How long a device was busy: the union of intervals that come nearly in order. Pure. */
#pragma once

#include <stdint.h>

#include "include/layout.h"

enum busy_class { BUSY_COMPUTE, BUSY_COPY, BUSY_COLLECTIVE, BUSY_CLASSES };

enum { PENDING = 4096 };

struct interval {
    uint64_t start, end;
    uint8_t class;
};

struct busy {
    struct interval pending[PENDING];
    uint32_t count;
    uint64_t from;                   /* all before is added up */
    uint64_t until[BUSY_CLASSES];    /* the latest end of each class among what was added up */
    uint64_t second;                 /* until when two kernels ran at once */
};

/* Take an interval; when the list is full the earlier half is added up. */
void busy_add(struct busy *busy, struct device_time *time, uint64_t start, uint64_t end, enum busy_class class);

/* Add up everything. */
void busy_settle(struct busy *busy, struct device_time *time);
