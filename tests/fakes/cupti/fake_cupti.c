/* A libcupti without a GPU: it records only what was enabled, fills the client's buffers and gives them back as the real
 * one does.
 *
 *   FAKE_CUPTI_FAIL=function[,function...]  these answer FAKE_CUPTI_CODE (35) and do nothing
 *   FAKE_CUPTI_VERSION=number               instead of 130001
 *   FAKE_CUPTI_LOG=file                     a line for each call that subscribes, enables, disables or finalizes
 *   FAKE_CUPTI_SUBMITTED_NS=number          kernels were submitted so long before they started, which is not told else
 *   FAKE_CUPTI_SUBSCRIBE_US=number          subscribing takes so long; the log says when it begins
 *   FAKE_CUPTI_READ_US=number               reading a buffer takes so long
 *   FAKE_CUPTI_WALKS=1                      as it is loaded, a thread of its own lists the process's libraries
 * Each thread fills buffers of its own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "include/abi.h"

enum { KINDS = 64, KERNEL_BYTES = 216, SUCCESS = 0, MAX_LIMIT = 12, THREADS = 16 };

/* What one thread fills; threads beyond the last share. */
struct filling {
    pthread_mutex_t lock;
    uint8_t *buffer;
    size_t size, filled;
};

static _Atomic(abi_requested) requested;
static _Atomic(abi_completed) completed;
static atomic_int enabled[KINDS];
static struct filling fillings[THREADS] = {[0 ... THREADS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};
static atomic_size_t dropped;
static atomic_llong grids[KINDS]; /* the newest number of each device's one context: kernels of graphs have none */

static uint64_t number(const char *variable) {
    const char *given = getenv(variable);
    return given ? strtoull(given, NULL, 10) : 0;
}

static const char *failing;
static int failing_code = 35;
static uint64_t submitted_ns, read_us, subscribe_us;

static int ignored(struct dl_phdr_info *info, size_t size, void *unused) {
    (void)info, (void)size, (void)unused;
    return 0;
}

static void *walk(void *unused) {
    dl_iterate_phdr(ignored, unused);
    return NULL;
}

__attribute__((constructor)) static void loaded(void) {
    failing = getenv("FAKE_CUPTI_FAIL");
    failing_code = getenv("FAKE_CUPTI_CODE") ? (int)number("FAKE_CUPTI_CODE") : failing_code;
    submitted_ns = number("FAKE_CUPTI_SUBMITTED_NS");
    read_us = number("FAKE_CUPTI_READ_US");
    subscribe_us = number("FAKE_CUPTI_SUBSCRIBE_US");
    pthread_t thread;
    struct timespec until;
    if (getenv("FAKE_CUPTI_WALKS") == NULL || pthread_create(&thread, NULL, walk, NULL) != 0)
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 3;
    if (pthread_timedjoin_np(thread, NULL, &until) != 0)
        fprintf(stderr, "loading CUPTI keeps other threads from listing libraries\n");
}

static int fails(const char *function) {
    return failing != NULL && strstr(failing, function) != NULL ? failing_code : SUCCESS;
}

static void note(const char *call, const char *how) {
    FILE *log = getenv("FAKE_CUPTI_LOG") ? fopen(getenv("FAKE_CUPTI_LOG"), "ae") : NULL;
    if (log != NULL) {
        fprintf(log, "%s %s\n", call, how);
        fclose(log);
    }
}

int cuptiGetVersion(uint32_t *version) {
    const char *given = getenv("FAKE_CUPTI_VERSION");
    int code = fails("cuptiGetVersion");
    if (code == SUCCESS)
        *version = given ? (uint32_t)atoi(given) : 130001;
    return code;
}

int cuptiActivityRegisterCallbacks(abi_requested on_request, abi_completed on_complete) {
    int code = fails("cuptiActivityRegisterCallbacks");
    if (code == SUCCESS) {
        requested = on_request;
        completed = on_complete;
    }
    return code;
}

int cuptiActivityEnable(int kind) {
    int code = fails("cuptiActivityEnable");
    if (code == SUCCESS)
        enabled[kind % KINDS] = 1;
    note("enable", "");
    return code;
}

int cuptiActivityDisable(int kind) {
    int code = fails("cuptiActivityDisable");
    if (code == SUCCESS)
        enabled[kind % KINDS] = 0;
    note("disable", "");
    return code;
}

int cuptiActivitySetAttribute(int attribute, size_t *bytes, void *value) {
    (void)attribute, (void)bytes, (void)value;
    return fails("cuptiActivitySetAttribute");
}

/* Called with its lock held. */
static void give_back(struct filling *filling) {
    uint8_t *full = filling->buffer;
    size_t valid = filling->filled;
    abi_completed to = completed;
    filling->buffer = NULL;
    filling->filled = 0;
    if (full != NULL && to != NULL)
        to(NULL, 0, full, filling->size, valid);
}

int cuptiActivityFlushAll(uint32_t flags) {
    (void)flags;
    int code = fails("cuptiActivityFlushAll");
    for (int thread = 0; code == SUCCESS && thread < THREADS; thread++) {
        pthread_mutex_lock(&fillings[thread].lock);
        give_back(&fillings[thread]);
        pthread_mutex_unlock(&fillings[thread].lock);
    }
    return code;
}

static size_t bytes_of(uint32_t kind) {
    switch (kind) {
    case ABI_CONCURRENT_KERNEL:
        return KERNEL_BYTES;
    case ABI_MEMCPY:
    case ABI_MEMCPY_PEER:
        return 96;
    case ABI_MEMSET:
        return 88;
    default:
        return 56;
    }
}

int cuptiActivityGetNextRecord(uint8_t *bytes, size_t valid, struct abi_record **record) {
    int code = fails("cuptiActivityGetNextRecord");
    if (code != SUCCESS)
        return code;
    if (*record == NULL && read_us)
        usleep((useconds_t)read_us);
    uint8_t *next = *record == NULL ? bytes : (uint8_t *)*record + bytes_of((*record)->kind);
    if (next >= bytes + valid)
        return MAX_LIMIT;
    *record = (struct abi_record *)next;
    return SUCCESS;
}

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *lost) {
    (void)context, (void)stream;
    int code = fails("cuptiActivityGetNumDroppedRecords");
    *lost = atomic_exchange(&dropped, 0);
    return code;
}

static struct filling *mine(void) {
    static atomic_int threads;
    static __thread struct filling *found;
    if (found == NULL)
        found = &fillings[threads++ % THREADS];
    return found;
}

/* Room for a record of this kind, or NULL where it is not recorded. Called with the lock held. */
static void *room(struct filling *filling, uint32_t kind) {
    size_t bytes = bytes_of(kind);
    abi_requested from = requested;
    if (from == NULL || (kind < KINDS && !enabled[kind]))
        return NULL;
    if (filling->buffer != NULL && filling->filled + bytes > filling->size)
        give_back(filling);
    if (filling->buffer == NULL) {
        size_t most = 0;
        from(&filling->buffer, &filling->size, &most);
        filling->filled = 0;
        if (filling->buffer == NULL || filling->size < bytes) {
            filling->buffer = NULL;
            dropped++;
            return NULL;
        }
    }
    void *at = filling->buffer + filling->filled;
    filling->filled += bytes;
    memset(at, 0, bytes);
    *(uint32_t *)at = kind;
    return at;
}

static _Atomic(abi_callback) callback;
static atomic_int wanted;
static __thread int inside; /* a callback of this thread */

/* A call of the driver, before and behind it. */
static void fake_driver_call(uint32_t function) {
    static const struct abi_call_site before = {0}, behind = {ABI_EXIT};
    for (inside = 1; inside <= 2; inside++) {
        abi_callback to = callback;
        if (to != NULL && wanted)
            to(NULL, ABI_DRIVER_DOMAIN, function, inside == 1 ? &before : &behind);
    }
    inside = 0;
}

/* Have the driver tell of its calls. */
static void hook(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    _Atomic(void (*)(uint32_t)) *tells = driver ? dlsym(driver, "fake_driver_tells") : NULL;
    if (tells != NULL)
        *tells = fake_driver_call;
    if (driver != NULL)
        dlclose(driver);
}

static atomic_bool subscribing;

/* As the real one: what it makes at its first subscriber it takes apart at exit, whoever is still inside. */
static void gone(void) {
    if (atomic_load(&subscribing))
        abort();
}

static void take_long(void) {
    static atomic_flag made = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&made))
        atexit(gone);
    atomic_store(&subscribing, 1);
    if (subscribe_us) {
        note("subscribing", "");
        usleep((useconds_t)subscribe_us);
    }
    atomic_store(&subscribing, 0);
}

int cuptiSubscribe(void **subscriber, abi_callback on_call, void *unused) {
    (void)unused;
    hook();
    take_long();
    int code = fails("cuptiSubscribe");
    if (code == SUCCESS && callback != NULL)
        code = ABI_MULTIPLE_SUBSCRIBERS;
    if (code == SUCCESS) {
        callback = on_call;
        *subscriber = &callback;
    }
    note("subscribe", code == SUCCESS ? "" : "refused");
    return code;
}

int cuptiEnableCallback(uint32_t enable, void *subscriber, int domain, uint32_t function) {
    (void)subscriber;
    if (domain == ABI_DRIVER_DOMAIN && function == ABI_DRIVER_GET_VERSION)
        wanted = (int)enable;
    return fails("cuptiEnableCallback");
}

/* Everything is as it was before the first call. */
int cuptiFinalize(void) {
    int code = fails("cuptiFinalize");
    note("finalize", inside == 2 ? "behind a call" : inside == 1 ? "before a call" : "directly");
    if (code != SUCCESS)
        return code;
    callback = NULL;
    requested = NULL;
    completed = NULL;
    wanted = 0;
    for (int kind = 0; kind < KINDS; kind++)
        enabled[kind] = 0;
    for (int thread = 0; thread < THREADS; thread++) {
        pthread_mutex_lock(&fillings[thread].lock);
        fillings[thread].buffer = NULL;
        fillings[thread].filled = 0;
        pthread_mutex_unlock(&fillings[thread].lock);
    }
    return SUCCESS;
}

/* What the driver would tell: called by the test's program. A record that is written at once is begun and ended here. */
static void *begin(uint32_t kind) {
    struct filling *filling = mine();
    pthread_mutex_lock(&filling->lock);
    return room(filling, kind);
}

static void end(void) { pthread_mutex_unlock(&mine()->lock); }

void fake_kernel(const char *name, uint32_t device, uint64_t start, uint64_t until, uint32_t graph) {
    int64_t grid = graph ? 0 : ++grids[device % KINDS];
    if (graph && enabled[ABI_GRAPH])
        return;
    struct abi_kernel *kernel = begin(ABI_CONCURRENT_KERNEL);
    if (kernel != NULL) {
        kernel->start = start;
        kernel->end = until;
        kernel->submitted = submitted_ns ? start - submitted_ns : 0;
        kernel->device = device;
        kernel->name = name;
        kernel->grid = grid;
        kernel->graph = graph;
    }
    end();
}

void fake_copy(uint8_t direction, uint64_t bytes, uint32_t device, uint64_t start, uint64_t until) {
    struct abi_copy *copy = begin(ABI_MEMCPY);
    if (copy != NULL) {
        copy->copy_kind = direction;
        copy->bytes = bytes;
        copy->start = start;
        copy->end = until;
        copy->device = device;
    }
    end();
}

void fake_graph(uint32_t device, uint32_t graph, uint64_t start, uint64_t until) {
    struct abi_graph *whole = begin(ABI_GRAPH);
    if (whole != NULL) {
        whole->start = start;
        whole->end = until;
        whole->device = device;
        whole->graph = graph;
    }
    end();
}

void fake_memset(uint64_t bytes, uint32_t device, uint64_t start, uint64_t until) {
    struct abi_memset *memset = begin(ABI_MEMSET);
    if (memset != NULL) {
        memset->bytes = bytes;
        memset->start = start;
        memset->end = until;
        memset->device = device;
    }
    end();
}

void fake_overhead(uint64_t start, uint64_t until) {
    struct abi_overhead *overhead = begin(ABI_OVERHEAD);
    if (overhead != NULL) {
        overhead->start = start;
        overhead->end = until;
    }
    end();
}

/* A record of a kind that nobody knows. */
void fake_unknown(void) {
    begin(KINDS + 1);
    end();
}

/* Records that CUPTI itself lost. */
void fake_lost(uint64_t records) { dropped += records; }

/* CPU time in nanoseconds to do nothing but read so many kernels' records, as CUPTI has clients read them. */
uint64_t fake_floor(uint64_t records) {
    enum { BYTES = 128 << 10, FITS = BYTES / KERNEL_BYTES };
    static uint8_t bytes[32][BYTES];
    for (int at = 0; at < 32; at++)
        for (int record = 0; record < FITS; record++)
            ((struct abi_record *)(bytes[at] + (size_t)record * KERNEL_BYTES))->kind = ABI_CONCURRENT_KERNEL;
    struct timespec from, to;
    volatile uint64_t sum = 0;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    for (uint64_t done = 0; done < records; done += FITS) {
        struct abi_record *record = NULL;
        while (cuptiActivityGetNextRecord(bytes[done / FITS % 32], (size_t)FITS * KERNEL_BYTES, &record) == SUCCESS) {
            const struct abi_kernel *kernel = (const struct abi_kernel *)record;
            sum += kernel->end - kernel->start + kernel->device + (uintptr_t)kernel->name + (uint64_t)kernel->grid;
        }
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    return (uint64_t)(to.tv_sec - from.tv_sec) * 1000000000 + (uint64_t)to.tv_nsec - (uint64_t)from.tv_nsec;
}
