/* The library's entry and its thread. The CUDA driver loads what CUDA_INJECTION64_PATH names when the process first calls
 * cuInit, and calls InitializeInjection. Nothing here may fail the application: whatever goes wrong, it runs as before. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "buffers.h"
#include "connection.h"
#include "recorder.h"
#include "table.h"
#include "windows.h"

enum {
    CONNECT_MS = 500,   /* between tries to reach the agent */
    TICK_MS = 20,       /* while recording */
    FLUSH_MS = 100,
    SETTLE_MS = 1000,   /* how late a record may come beside others, at least */
    IDLE_MS = 500,      /* the longest wait while off */
    QUIET_MS = 30,      /* without a record after recording ended: then all have come */
    DRAIN_MS = 2000,    /* the longest that records are awaited */
    END_MS = 2000,      /* the longest that a program's end waits: CUPTI takes 50 to attach on a quiet machine */
    REFUSED_MS = 10000, /* between tries after CUPTI refused */
};

enum { STACK_BYTES = 1 << 20 }; /* glibc puts all libraries' thread-local variables there, of which some have much */

/* What ends a window early, so that the next has a CUPTI anew: it is known to give wrong times, and to take more and more
 * memory, after millions of graphs' kernels. Both far beyond what sound windows have. */
enum { MOST_BAD_KERNELS = 64, MOST_GRAPH_KERNELS = 1000000 };

static struct table *table;
static atomic_bool stopping, ended;
static atomic_bool working; /* CUPTI is attached, or about to be */
static pid_t started;       /* the process whose thread it is */

/* What the present window began with. */
struct opening {
    uint64_t refused;
    struct signs signs;
};

/* What the thread knows; all times are milliseconds of the monotonic clock. */
struct session {
    bool linked, on, draining;
    bool leaving; /* the window was cut: CUPTI leaves before the next */
    uint64_t try_at;
    struct windows windows;
    struct opening opening;
    uint64_t flush_at, settle_at, drain_until, quiet_at, refused_until;
};

static uint64_t clock_of(clockid_t clock, uint64_t per_second) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * per_second + (uint64_t)now.tv_nsec / (1000000000u / per_second);
}

static uint64_t now_ms(void) { return clock_of(CLOCK_MONOTONIC, 1000); }

static void mark_time(struct header *header, bool on) {
    uint64_t now = clock_of(CLOCK_BOOTTIME, 1000000000u);
    if (on && header->state == STATE_ON)
        header->on_ns += now - header->written_ns;
    header->written_ns = now;
    header->cpu_ns = clock_of(CLOCK_THREAD_CPUTIME_ID, 1000000000u);
}

/* A kernel that runs long says nothing meanwhile. */
static uint64_t twice_longest_ms(void) {
    uint64_t longest_ms = table_longest_ns(table) / 1000000;
    return 2 * (longest_ms < DRAIN_MS / 4 ? longest_ms : DRAIN_MS / 4);
}

static uint64_t quiet_ms(void) { return QUIET_MS + twice_longest_ms(); }

static struct opening counted(void) {
    return (struct opening){table_header(table)->buffers_refused, table_signs(table)};
}

/* Whether the window must end: records were lost because buffers are full, times are wrong, or CUPTI has grown. */
static bool overdrawn(const struct opening *opening) {
    struct opening now = counted();
    return now.refused != opening->refused || now.signs.bad_kernels - opening->signs.bad_kernels >= MOST_BAD_KERNELS
        || now.signs.graph_kernels - opening->signs.graph_kernels >= MOST_GRAPH_KERNELS;
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
        table_age(table);
        header->windows++;
        header->opened_ns = header->written_ns;
        header->closed_ns = 0;
    }
    table_end(table);
    session->on = code == 0;
    if (session->on)
        windows_begun(&session->windows, now_ms());
    session->draining = false;
    session->opening = counted();
    session->flush_at = now + FLUSH_MS;
    session->settle_at = now + SETTLE_MS;
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

/* Read what the agent asks. One that floods is left, as one that says what is no lease. */
static void read_link(struct session *session, int wait_ms) {
    struct lease lease;
    enum link_news news = link_read(&lease, wait_ms);
    for (; news == LINK_LEASE; news = link_read(&lease, 0)) {
        if (!windows_take(&session->windows, &lease, now_ms(), table_header(table)->records)) {
            link_close();
            news = LINK_ENDED;
            break;
        }
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
    if (now >= session->settle_at) {
        table_settle_older(table);
        session->settle_at = now + SETTLE_MS + twice_longest_ms();
    }
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
    session->draining = session->leaving = false;
    atomic_store(&working, false);
}

static void cut_window(struct session *session) {
    windows_cut(&session->windows);
    session->leaving = true;
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
    if (session->on && overdrawn(&session->opening))
        cut_window(session);
    bool want = session->linked && windows_open(&session->windows, now, table_header(table)->records);
    if (want && !session->on && !session->leaving)
        switch_on(session, now);
    else if (!want && session->on)
        switch_off(session, now);
    if (session->on) {
        record(session, now);
        buffers_wait((uint32_t)windows_left(&session->windows, now_ms(), TICK_MS));
    } else if (session->draining) {
        drain(session, now);
        buffers_wait(TICK_MS / 4);
    } else if (session->linked) {
        read_link(session, (int)windows_wait(&session->windows, now, IDLE_MS));
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

/* At exit: the last records are read while CUPTI still stands; no longer than END_MS is waited for, and not at all where
 * it is not attached, or in a child. */
static void stop(void) {
    if (getpid() != started)
        return;
    atomic_store(&stopping, true);
    for (int waited = 0; waited < END_MS && atomic_load(&working) && !atomic_load(&ended); waited += 1)
        usleep(1000);
}

static void stop_first(void *unused) {
    (void)unused;
    stop();
}

/* CUPTI takes itself apart at exit, by handlers that it adds while it is first attached: handlers run from the newest to
 * the oldest, so ours is too late for a program that ends just then. What a thread keeps for its own end is run before all
 * handlers, where that thread ends the process: the main one, nearly always. */
static void stop_before_handlers(void) {
    extern int __cxa_thread_atexit_impl(void (*ends)(void *), void *of, void *library); /* what C++ uses; glibc 2.18 */
    extern void *__dso_handle;
    if (syscall(SYS_gettid) == getpid())
        __cxa_thread_atexit_impl(stop_first, NULL, &__dso_handle);
    atexit(stop);
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
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_t thread;
    started = getpid();
    if (pthread_create(&thread, &attributes, run, NULL) == 0) {
        stop_before_handlers();
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
