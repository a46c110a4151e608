#include "busy.h"

#include <string.h>

static uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* Add the time from `from` to `to`, in which no interval begins: what runs then is known from `until`. */
static void advance(struct busy *busy, struct device_time *time, uint64_t to) {
    uint64_t from = busy->from;
    if (to <= from)
        return;
    uint64_t span[BUSY_CLASSES], any = 0;
    for (int class = 0; class < BUSY_CLASSES; class++) {
        uint64_t until = min(busy->until[class], to);
        span[class] = until > from ? until - from : 0;
        any = max(any, span[class]);
    }
    time->busy_ns += any;
    time->compute_ns += span[BUSY_COMPUTE];
    time->copy_ns += span[BUSY_COPY];
    time->collective_ns += span[BUSY_COLLECTIVE];
    /* All spans begin at `from`: the shorter lies in the longer. */
    time->copy_beside_compute_ns += min(span[BUSY_COPY], span[BUSY_COMPUTE]);
    time->collective_beside_compute_ns += min(span[BUSY_COLLECTIVE], span[BUSY_COMPUTE]);
    uint64_t second = min(busy->second, to);
    time->kernels_beside_ns += second > from ? second - from : 0;
    busy->from = to;
}

static void take(struct busy *busy, struct device_time *time, const struct interval *next) {
    uint64_t start = next->start;
    if (start < busy->from) {
        time->late_ns += min(next->end, busy->from) - start;
        start = busy->from;
        if (next->end <= start)
            return;
    }
    advance(busy, time, start);
    if (next->class != BUSY_COPY) {
        uint64_t running = max(busy->until[BUSY_COMPUTE], busy->until[BUSY_COLLECTIVE]);
        busy->second = max(busy->second, min(running, next->end));
    }
    busy->until[next->class] = max(busy->until[next->class], next->end);
}

static void settle(struct busy *busy, struct device_time *time, uint32_t number) {
    for (uint32_t i = 0; i < number; i++)
        take(busy, time, &busy->pending[i]);
    busy->count -= number;
    memmove(busy->pending, busy->pending + number, busy->count * sizeof busy->pending[0]);
}

void busy_add(struct busy *busy, struct device_time *time, uint64_t start, uint64_t end, enum busy_class class) {
    if (busy->count == PENDING)
        settle(busy, time, PENDING / 2);
    uint32_t at = busy->count++;
    for (; at > 0 && busy->pending[at - 1].start > start; at--)
        busy->pending[at] = busy->pending[at - 1];
    busy->pending[at] = (struct interval){start, end, class};
}

void busy_settle(struct busy *busy, struct device_time *time) {
    settle(busy, time, busy->count);
    uint64_t last = 0;
    for (int class = 0; class < BUSY_CLASSES; class++)
        last = max(last, busy->until[class]);
    advance(busy, time, last);
}
