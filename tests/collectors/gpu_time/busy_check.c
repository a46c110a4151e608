/* Compares busy.c with a count of every nanosecond, on intervals at random. Prints what differs; 0 where nothing does.
 *   busy_check SEEDS */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "busy.c"

enum { SPAN = 4000, MOST = 300, WIDE = 1 << 17, THREADS = 12, BUFFER = 600, BUFFERS = 5, PAUSE = 100 };

static uint64_t random_below(uint64_t bound) { return (uint64_t)rand() % bound; }

static struct device_time counted(const struct interval *intervals, int number, int span) {
    struct device_time time = {0};
    static int running[BUSY_CLASSES][WIDE];
    memset(running, 0, sizeof running);
    for (int i = 0; i < number; i++)
        for (uint64_t at = intervals[i].start; at < intervals[i].end; at++)
            running[intervals[i].class][at]++;
    for (int at = 0; at < span; at++) {
        int compute = running[BUSY_COMPUTE][at], copy = running[BUSY_COPY][at], collective = running[BUSY_COLLECTIVE][at];
        time.busy_ns += compute || copy || collective;
        time.compute_ns += compute > 0;
        time.copy_ns += copy > 0;
        time.collective_ns += collective > 0;
        time.copy_beside_compute_ns += copy && compute;
        time.collective_beside_compute_ns += collective && compute;
        time.kernels_beside_ns += compute + collective >= 2;
    }
    return time;
}

static int differs(int seed, const struct device_time *time, const struct interval *intervals, int number, int span) {
    struct device_time expected = counted(intervals, number, span);
    if (memcmp(time, &expected, sizeof expected) == 0)
        return 0;
    printf("seed %d: busy %llu, expected %llu; beside %llu, expected %llu; late %llu\n", seed, (unsigned long long)time->busy_ns,
           (unsigned long long)expected.busy_ns, (unsigned long long)time->kernels_beside_ns,
           (unsigned long long)expected.kernels_beside_ns, (unsigned long long)time->late_ns);
    return 1;
}

/* In random order: all of them wait, so that none is late. */
static int in_any_order(int seed) {
    static struct busy busy;
    memset(&busy, 0, sizeof busy);
    struct interval intervals[MOST];
    struct device_time time = {0};
    int number = (int)random_below(MOST);
    for (int i = 0; i < number; i++) {
        uint64_t start = random_below(SPAN - 1);
        intervals[i] = (struct interval){start, start + random_below(i % 3 ? 30 : SPAN - start), (uint8_t)random_below(BUSY_CLASSES)};
        if (intervals[i].end > SPAN)
            intervals[i].end = SPAN;
        busy_add(&busy, &time, intervals[i].start, intervals[i].end, intervals[i].class);
    }
    busy_settle(&busy, &time);
    busy_settle(&busy, &time);
    return differs(seed, &time, intervals, number, SPAN);
}

/* As threads fill buffers of their own: one buffer after the other, whose times lie beside each other. */
static int in_buffers(int seed) {
    static struct busy busy;
    memset(&busy, 0, sizeof busy);
    static struct interval intervals[THREADS * BUFFERS * BUFFER];
    struct device_time time = {0};
    uint64_t clocks[THREADS] = {0};
    int number = 0;
    for (int buffer = 0; buffer < BUFFERS * THREADS; buffer++)
        for (int i = 0; i < BUFFER; i++) {
            uint64_t *clock = &clocks[buffer % THREADS], length = random_below(20);
            *clock += 5 + random_below(20);
            intervals[number++] = (struct interval){*clock, *clock + length, (uint8_t)random_below(BUSY_CLASSES)};
            busy_add(&busy, &time, *clock, *clock + length, intervals[number - 1].class);
        }
    busy_settle(&busy, &time);
    return differs(seed, &time, intervals, number, WIDE);
}

/* As records come when kernels end, none of them half a pause long: added up between pauses, all are there two pauses on. */
static int between_pauses(int seed) {
    static struct busy busy;
    memset(&busy, 0, sizeof busy);
    static struct interval intervals[WIDE / 10];
    struct device_time time = {0};
    int number = 0;
    uint64_t pause = PAUSE;
    for (uint64_t end = PAUSE; end < WIDE - PAUSE; end += random_below(20)) {
        for (; end >= pause; pause += PAUSE)
            busy_settle_older(&busy, &time);
        intervals[number] = (struct interval){end - random_below(PAUSE / 2), end, (uint8_t)random_below(BUSY_CLASSES)};
        busy_add(&busy, &time, intervals[number].start, end, intervals[number].class);
        if (++number == WIDE / 10)
            break;
    }
    busy_settle_older(&busy, &time);
    busy_settle_older(&busy, &time);
    return differs(seed, &time, intervals, number, WIDE);
}

/* More than wait, in order but for some that come too late: what is counted and what was late is all there was. */
static int too_late(int seed) {
    static struct busy busy;
    memset(&busy, 0, sizeof busy);
    struct device_time time = {0};
    uint64_t all = 0, at = 1;
    for (int i = 0; i < 3 * PENDING; i++) {
        at += 1 + random_below(5);
        uint64_t length = 1 + random_below(3), start = at;
        at += length;
        if (random_below(200) == 0 && start > 10 * PENDING)
            start -= 10 * PENDING; /* where another has been */
        busy_add(&busy, &time, start, start + length, BUSY_COMPUTE);
        all += length;
    }
    busy_settle(&busy, &time);
    if (time.late_ns > 0 && time.late_ns < all / 20 && time.busy_ns <= all && time.busy_ns + time.late_ns + time.kernels_beside_ns == all)
        return 0;
    printf("seed %d: %llu busy, %llu late, %llu twice of %llu\n", seed, (unsigned long long)time.busy_ns,
           (unsigned long long)time.late_ns, (unsigned long long)time.kernels_beside_ns, (unsigned long long)all);
    return 1;
}

int main(int count, char **arguments) {
    int wrong = 0, seeds = count > 1 ? atoi(arguments[1]) : 1;
    for (int seed = 0; seed < seeds; seed++) {
        srand((unsigned)seed);
        wrong += in_any_order(seed);
        if (seed % 50 == 0)
            wrong += too_late(seed) + in_buffers(seed) + between_pauses(seed);
    }
    return wrong != 0;
}
