/* The library's entry and its thread. The CUDA driver loads what CUDA_INJECTION64_PATH names when the process first calls
 * cuInit, and calls InitializeInjection. Nothing here may fail the application: whatever goes wrong, it runs as before. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "buffers.h"
#include "connection.h"
#include "recorder.h"
#include "table.h"

enum {
    CONNECT_MS = 500,   /* between tries to reach the agent */
    TICK_MS = 20,       /* while recording */
    FLUSH_MS = 100,
    IDLE_MS = 500,      /* the longest wait while off */
    QUIET_MS = 30,      /* without a record after recording ended: then all have come */
    DRAIN_MS = 2000,    /* the longest that records are awaited */
    REFUSED_MS = 10000, /* between tries after CUPTI refused */
    MOST_LEASES = 1024, /* in a second: four times what waits at a process that was stopped */
};

static struct table *table;
static pthread_t thread;
static atomic_bool stopping, ended;
static atomic_bool working; /* CUPTI is attached, or about to be */

/* What the thread knows; all times are milliseconds of the monotonic clock. */
struct session {
    bool linked, on, draining;
    uint64_t try_at;
    struct lease lease;
    uint64_t lease_until;
    uint64_t second; /* the present one, and the leases that came in it */
    uint32_t leases;
    uint64_t period_from, on_from, on_until; /* of the present period */
    uint64_t records_before;                 /* it */
    uint64_t flush_at, drain_until, quiet_at, refused_until;
};

static uint64_t clock_of(clockid_t clock, uint64_t per_second) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * per_second + (uint64_t)now.tv_nsec / (1000000000u / per_second);
}

static uint64_t now_ms(void) { return clock_of(CLOCK_MONOTONIC, 1000); }

static uint64_t below(uint64_t bound) {
    uint64_t random = 0;
    if (bound == 0 || getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
        return 0;
    return random % bound;
}

/* Place the next period's window at random in it: what repeats with the period is not always met or always missed. */
static void next_period(struct session *session, uint64_t now) {
    const struct lease *lease = &session->lease;
    session->period_from = now;
    session->on_from = now + below((uint64_t)lease->period_ms - lease->on_ms + 1);
    session->on_until = session->on_from + lease->on_ms;
    session->records_before = table_header(table)->records;
}

/* Whether a plan leaves nothing to be drawn. */
static bool constant(const struct lease *lease) { return lease->on_ms == 0 || lease->on_ms == lease->period_ms; }

/* Another length of windows counts from the next period on: drawn anew each second, most windows would never come. */
static void take_lease(struct session *session, const struct lease *lease, uint64_t now) {
    bool changed = lease->on_ms != session->lease.on_ms || lease->period_ms != session->lease.period_ms;
    bool at_once = now >= session->lease_until || (changed && (constant(lease) || constant(&session->lease)));
    session->lease = *lease;
    session->lease_until = now + lease->lease_ms;
    if (at_once)
        next_period(session, now);
}

static bool wanted(struct session *session, uint64_t now) {
    if (!session->linked || now >= session->lease_until || session->lease.on_ms == 0)
        return false;
    if (now >= session->period_from + session->lease.period_ms)
        next_period(session, now);
    uint64_t records = table_header(table)->records - session->records_before;
    if (session->lease.most_records != 0 && records >= session->lease.most_records)
        return false;
    return session->lease.on_ms == session->lease.period_ms || (now >= session->on_from && now < session->on_until);
}

static void mark_time(struct header *header, bool on) {
    uint64_t now = clock_of(CLOCK_BOOTTIME, 1000000000u);
    if (on && header->state == STATE_ON)
        header->on_ns += now - header->written_ns;
    header->written_ns = now;
    header->cpu_ns = clock_of(CLOCK_THREAD_CPUTIME_ID, 1000000000u);
}

/* A kernel that runs long says nothing meanwhile. */
static uint64_t quiet_ms(void) {
    uint64_t longest_ms = table_longest_ns(table) / 1000000;
    return QUIET_MS + 2 * (longest_ms < DRAIN_MS / 4 ? longest_ms : DRAIN_MS / 4);
}

static void switch_on(struct session *session, uint64_t now) {
    if (now < session->refused_until)
        return;
    atomic_store(&working, true);
    if (atomic_load(&stopping))
        return;
    struct header *header = table_header(table);
    int code = recorder_on();
    table_begin(table);
    mark_time(header, false);
    header->error = code;
    header->state = code == 0 ? STATE_ON : code == ABI_MULTIPLE_SUBSCRIBERS ? STATE_OCCUPIED : STATE_REFUSED;
    header->occupied += code == ABI_MULTIPLE_SUBSCRIBERS;
    if (code == 0) {
        header->windows++;
        header->opened_ns = header->written_ns;
        header->closed_ns = 0;
    }
    table_end(table);
    session->on = code == 0;
    session->draining = false;
    session->flush_at = now + FLUSH_MS;
    if (code != 0)
        session->refused_until = now + REFUSED_MS;
    atomic_store(&working, code == 0);
}

static void switch_off(struct session *session, uint64_t now) {
    struct header *header = table_header(table);
    table_begin(table);
    mark_time(header, true);
    header->state = STATE_OFF;
    header->closed_ns = header->written_ns;
    table_end(table);
    recorder_off();
    session->on = false;
    session->draining = true;
    session->drain_until = now + DRAIN_MS;
    session->quiet_at = now + quiet_ms();
    session->flush_at = now;
}

static bool flooded(struct session *session, uint64_t now) {
    if (now / 1000 != session->second) {
        session->second = now / 1000;
        session->leases = 0;
    }
    return ++session->leases > MOST_LEASES;
}

/* Read what the agent asks. One that floods is left, as one that says what is no lease. */
static void read_link(struct session *session, int wait_ms) {
    struct lease lease;
    enum link_news news = link_read(&lease, wait_ms);
    for (; news == LINK_LEASE; news = link_read(&lease, 0)) {
        uint64_t now = now_ms();
        if (flooded(session, now)) {
            link_close();
            news = LINK_ENDED;
            break;
        }
        take_lease(session, &lease, now);
    }
    if (news == LINK_ENDED) {
        session->linked = false;
        session->try_at = now_ms() + CONNECT_MS;
    }
}

/* Read what came; true when there was something. */
static bool record(struct session *session, uint64_t now) {
    if (now >= session->flush_at) {
        recorder_flush();
        session->flush_at = now + (session->draining ? TICK_MS / 2 : FLUSH_MS);
    }
    bool any = recorder_read();
    table_begin(table);
    mark_time(table_header(table), session->on);
    table_end(table);
    return any;
}

/* What was launched in a window is read until nothing has come for a while; then CUPTI leaves. */
static void drain(struct session *session, uint64_t now) {
    if (record(session, now))
        session->quiet_at = now + quiet_ms();
    if (now < session->quiet_at && now < session->drain_until)
        return;
    recorder_detach();
    table_begin(table);
    table_settle(table);
    table_end(table);
    session->draining = false;
    atomic_store(&working, false);
}

/* How long nothing needs to be done but to listen. */
static int idle_ms(const struct session *session, uint64_t now) {
    uint64_t wait = IDLE_MS;
    if (session->lease.on_ms != 0 && now < session->lease_until) {
        uint64_t next = now < session->on_from ? session->on_from : session->period_from + session->lease.period_ms;
        wait = next > now ? next - now : 1;
    }
    return (int)(wait < IDLE_MS ? wait : IDLE_MS);
}

/* Wait for a buffer, a tick at most, and no longer than the window goes. */
static void wait_for_buffers(const struct session *session) {
    uint64_t now = now_ms(), wait = TICK_MS;
    if (session->on && session->lease.on_ms != session->lease.period_ms && session->on_until < now + wait)
        wait = session->on_until > now ? session->on_until - now : 0;
    buffers_wait((uint32_t)wait);
}

static void turn(struct session *session) {
    uint64_t now = now_ms();
    if (!session->linked && now >= session->try_at) {
        session->linked = link_open(table_descriptor(table), table_header(table)->pid);
        session->try_at = now + CONNECT_MS;
        table_forget_numbers(table);
    }
    if (session->linked)
        read_link(session, 0);
    bool want = wanted(session, now);
    if (want && !session->on)
        switch_on(session, now);
    else if (!want && session->on)
        switch_off(session, now);
    if (session->on) {
        record(session, now);
        wait_for_buffers(session);
    } else if (session->draining) {
        drain(session, now);
        buffers_wait(TICK_MS / 4);
    } else if (session->linked) {
        read_link(session, idle_ms(session, now));
    } else {
        usleep(CONNECT_MS * 1000);
    }
}

static void *run(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "pointillist");
    struct session session = {0};
    while (!atomic_load(&stopping))
        turn(&session);
    if (session.on)
        switch_off(&session, now_ms());
    if (session.draining) {
        session.drain_until = 0;
        drain(&session, now_ms());
    }
    link_close();
    atomic_store(&ended, true);
    return NULL;
}

/* At exit: the last records are read while CUPTI still stands; no longer than half a second is waited for, and not at
 * all where it is not attached. */
static void stop(void) {
    atomic_store(&stopping, true);
    for (int waited = 0; waited < 500 && atomic_load(&working) && !atomic_load(&ended); waited += 1)
        usleep(1000);
}

/* A child of fork() has no thread of ours: it reports nothing, and has nothing to wait for. */
static void in_child(void) {
    link_close();
    atomic_store(&working, false);
}

static void start(void) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, 256 << 10);
    if (pthread_create(&thread, &attributes, run, NULL) == 0) {
        atexit(stop);
        pthread_atfork(NULL, NULL, in_child);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

__attribute__((visibility("default"))) int InitializeInjection(void) {
    static atomic_flag begun = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&begun))
        return 1;
    table = table_make();
    if (table == NULL)
        return 1;
    const char *missing = recorder_open(table);
    if (missing == NULL)
        start();
    else if (secure_getenv("POINTILLIST_GPU_TIME_DEBUG") != NULL)
        fprintf(stderr, "pointillist: no GPU time of this process: %s\n", missing);
    return 1;
}
