#include "busy.h"

#include <stdbool.h>
#include <string.h>

enum { NEAR = 16 };

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

static uint32_t run_end(const struct interval *of, uint32_t from, uint32_t count) {
    while (++from < count && of[from - 1].start <= of[from].start)
        continue;
    return from;
}

/* Merge neighbouring runs, two by two, from one place to another. Returns how many runs there were, or one more. */
static uint32_t merge_pairs(const struct interval *from, struct interval *to, uint32_t count) {
    uint32_t runs = 0;
    for (uint32_t left = 0, end; left < count; left = end, runs += 2) {
        uint32_t middle = run_end(from, left, count), right = middle;
        end = middle < count ? run_end(from, middle, count) : middle;
        /* Which of the two is next is chance: chosen without a branch, it costs a third. */
        while (left < middle && right < end) {
            uint32_t later = from[right].start < from[left].start;
            *to++ = from[later ? right : left];
            right += later;
            left += 1 - later;
        }
        memcpy(to, from + left, (middle - left) * sizeof *to);
        memcpy(to + (middle - left), from + right, (end - right) * sizeof *to);
        to += middle - left + end - right;
    }
    return runs;
}

/* Have one run where there were many: those behind the first, which is long, and then both. */
static void sort(struct busy *busy) {
    static struct interval places[2][PENDING];
    struct interval *pending = busy->pending;
    uint32_t first = run_end(pending, 0, busy->count), rest = busy->count - first, turn = 0;
    if (busy->last_run == 0)
        return;
    busy->last_run = 0;
    uint32_t runs = merge_pairs(pending + first, places[0], rest);
    for (; runs > 2; turn = 1 - turn)
        runs = merge_pairs(places[turn], places[1 - turn], rest);
    while (rest > 0) {
        uint32_t at = first + rest - 1;
        bool earlier = first > 0 && pending[first - 1].start > places[turn][rest - 1].start;
        pending[at] = earlier ? pending[--first] : places[turn][--rest];
    }
}

/* Add up the first of a sorted list. */
static void settle(struct busy *busy, struct device_time *time, uint32_t number) {
    for (uint32_t i = 0; i < number; i++)
        take(busy, time, &busy->pending[i]);
    busy->count -= number;
    memmove(busy->pending, busy->pending + number, busy->count * sizeof busy->pending[0]);
}

void busy_add(struct busy *busy, struct device_time *time, uint64_t start, uint64_t end, enum busy_class class) {
    if (busy->count == PENDING) {
        sort(busy);
        settle(busy, time, PENDING / 2);
    }
    /* What comes a little late is put in its place; what comes far back begins another run. */
    uint32_t at = busy->count++, least = at > busy->last_run + NEAR ? at - NEAR : busy->last_run;
    while (at > least && busy->pending[at - 1].start > start)
        at--;
    if (at == least && at > busy->last_run && busy->pending[at - 1].start > start)
        at = busy->last_run = busy->count - 1;
    memmove(busy->pending + at + 1, busy->pending + at, (busy->count - 1 - at) * sizeof busy->pending[0]);
    busy->pending[at] = (struct interval){start, end, class};
    busy->newest = max(busy->newest, end);
}

void busy_settle_older(struct busy *busy, struct device_time *time) {
    uint32_t number = 0;
    sort(busy);
    while (number < busy->count && busy->pending[number].start < busy->older)
        number++;
    settle(busy, time, number);
    advance(busy, time, busy->older);
    busy->older = busy->newest;
}

void busy_settle(struct busy *busy, struct device_time *time) {
    sort(busy);
    settle(busy, time, busy->count);
    uint64_t last = 0;
    for (int class = 0; class < BUSY_CLASSES; class++)
        last = max(last, busy->until[class]);
    advance(busy, time, last);
}
