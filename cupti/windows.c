#define _GNU_SOURCE
#include "windows.h"

#include <sys/random.h>

enum { MOST_LEASES = 1024 }; /* in a second: four times what waits at a process that was stopped */

static uint64_t below(uint64_t bound) {
    uint64_t random = 0;
    if (bound == 0 || getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        return 0;
    return random % bound;
}

/* Place the next period's window at random in it: what repeats with the period is not always met or always missed. */
static void next_period(struct windows *windows, uint64_t now, uint64_t records) {
    const struct lease *lease = &windows->lease;
    windows->period_from = now;
    windows->on_from = now + below((uint64_t)lease->period_ms - lease->on_ms + 1);
    windows->on_until = windows->on_from + lease->on_ms;
    windows->records_before = records;
    windows->cut = false;
}

/* Whether a plan records all the time. */
static bool always(const struct lease *lease) { return lease->on_ms == lease->period_ms; }

/* Whether a plan leaves nothing to be drawn. */
static bool constant(const struct lease *lease) { return lease->on_ms == 0 || always(lease); }

static bool flooded(struct windows *windows, uint64_t now) {
    if (now / 1000 != windows->second) {
        windows->second = now / 1000;
        windows->leases = 0;
    }
    return ++windows->leases > MOST_LEASES;
}

/* Another length of windows counts from the next period on: drawn anew each second, most windows would never come. */
bool windows_take(struct windows *windows, const struct lease *lease, uint64_t now, uint64_t records) {
    if (flooded(windows, now))
        return false;
    bool changed = lease->on_ms != windows->lease.on_ms || lease->period_ms != windows->lease.period_ms;
    bool at_once = now >= windows->lease_until || (changed && (constant(lease) || constant(&windows->lease)));
    windows->lease = *lease;
    windows->lease_until = now + lease->lease_ms;
    if (at_once)
        next_period(windows, now, records);
    return true;
}

bool windows_open(struct windows *windows, uint64_t now, uint64_t records) {
    const struct lease *lease = &windows->lease;
    if (now >= windows->lease_until || lease->on_ms == 0)
        return false;
    if (now >= windows->period_from + lease->period_ms)
        next_period(windows, now, records);
    if (windows->cut || (lease->most_records != 0 && records - windows->records_before >= lease->most_records))
        return false;
    return always(lease) || (now >= windows->on_from && now < windows->on_until);
}

void windows_begun(struct windows *windows, uint64_t now) { windows->on_until = now + windows->lease.on_ms; }

void windows_cut(struct windows *windows) { windows->cut = true; }

uint64_t windows_wait(const struct windows *windows, uint64_t now, uint64_t most) {
    if (windows->lease.on_ms == 0 || now >= windows->lease_until)
        return most;
    uint64_t next = now < windows->on_from ? windows->on_from : windows->period_from + windows->lease.period_ms;
    uint64_t wait = next > now ? next - now : 1;
    return wait < most ? wait : most;
}

uint64_t windows_left(const struct windows *windows, uint64_t now, uint64_t most) {
    uint64_t end = windows->lease_until;
    if (!always(&windows->lease) && windows->on_until < end)
        end = windows->on_until;
    uint64_t left = end > now ? end - now : 0;
    return left < most ? left : most;
}
