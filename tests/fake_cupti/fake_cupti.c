/* A libcupti without a GPU: it records only what was enabled, fills the client's buffers and gives them back as the real
 * one does.
 *
 *   FAKE_CUPTI_FAIL=function[,function...]  these answer FAKE_CUPTI_CODE (35) and do nothing
 *   FAKE_CUPTI_VERSION=number               instead of 130001
 *   FAKE_CUPTI_LOG=file                     a line for each call that subscribes, enables, disables or finalizes */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "include/abi.h"

enum { KINDS = 64, KERNEL_BYTES = 216, SUCCESS = 0, MAX_LIMIT = 12 };

static abi_requested requested;
static abi_completed completed;
static int enabled[KINDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *buffer;
static size_t size, filled, dropped;
static int64_t grids[KINDS]; /* the newest number of each device's one context: kernels of graphs have none */

static int fails(const char *function) {
    const char *list = getenv("FAKE_CUPTI_FAIL");
    const char *code = getenv("FAKE_CUPTI_CODE");
    if (list == NULL || strstr(list, function) == NULL)
        return SUCCESS;
    return code ? atoi(code) : 35;
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

static void give_back(void) {
    uint8_t *full = buffer;
    size_t valid = filled;
    buffer = NULL;
    filled = 0;
    if (full != NULL && completed != NULL)
        completed(NULL, 0, full, size, valid);
}

int cuptiActivityFlushAll(uint32_t flags) {
    (void)flags;
    int code = fails("cuptiActivityFlushAll");
    if (code == SUCCESS) {
        pthread_mutex_lock(&lock);
        give_back();
        pthread_mutex_unlock(&lock);
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
    uint8_t *next = *record == NULL ? bytes : (uint8_t *)*record + bytes_of((*record)->kind);
    if (next >= bytes + valid)
        return MAX_LIMIT;
    *record = (struct abi_record *)next;
    return SUCCESS;
}

int cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream, size_t *lost) {
    (void)context, (void)stream;
    int code = fails("cuptiActivityGetNumDroppedRecords");
    pthread_mutex_lock(&lock);
    *lost = dropped;
    dropped = 0;
    pthread_mutex_unlock(&lock);
    return code;
}

/* Room for a record of this kind, or NULL where it is not recorded. Called with the lock held. */
static void *room(uint32_t kind) {
    size_t bytes = bytes_of(kind);
    if (requested == NULL || (kind < KINDS && !enabled[kind]))
        return NULL;
    if (buffer != NULL && filled + bytes > size)
        give_back();
    if (buffer == NULL) {
        size_t most = 0;
        requested(&buffer, &size, &most);
        filled = 0;
        if (buffer == NULL || size < bytes) {
            buffer = NULL;
            dropped++;
            return NULL;
        }
    }
    void *at = buffer + filled;
    filled += bytes;
    memset(at, 0, bytes);
    return at;
}

static abi_callback callback;
static int wanted;
static __thread int inside; /* a callback of this thread */

/* A call of the driver, before and behind it. */
void fake_driver_call(uint32_t function) {
    static const struct abi_call_site before = {0}, behind = {ABI_EXIT};
    inside = 1;
    if (callback != NULL && wanted)
        callback(NULL, ABI_DRIVER_DOMAIN, function, &before);
    inside = 2;
    if (callback != NULL && wanted)
        callback(NULL, ABI_DRIVER_DOMAIN, function, &behind);
    inside = 0;
}

int cuptiSubscribe(void **subscriber, abi_callback on_call, void *unused) {
    (void)unused;
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

int cuptiUnsubscribe(void *subscriber) {
    (void)subscriber;
    callback = NULL;
    return SUCCESS;
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
    pthread_mutex_lock(&lock);
    callback = NULL;
    requested = NULL;
    completed = NULL;
    wanted = 0;
    buffer = NULL;
    filled = 0;
    memset(enabled, 0, sizeof enabled);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* What the driver would tell: called by the test's program. */
void fake_kernel(const char *name, uint32_t device, uint64_t start, uint64_t end, uint32_t graph) {
    pthread_mutex_lock(&lock);
    int64_t grid = graph ? 0 : ++grids[device % KINDS];
    if (!(graph && enabled[ABI_GRAPH])) {
        struct abi_kernel *kernel = room(ABI_CONCURRENT_KERNEL);
        if (kernel != NULL) {
            kernel->kind = ABI_CONCURRENT_KERNEL;
            kernel->start = start;
            kernel->end = end;
            kernel->device = device;
            kernel->name = name;
            kernel->grid = grid;
            kernel->graph = graph;
        }
    }
    pthread_mutex_unlock(&lock);
}

void fake_copy(uint8_t direction, uint64_t bytes, uint32_t device, uint64_t start, uint64_t end) {
    pthread_mutex_lock(&lock);
    struct abi_copy *copy = room(ABI_MEMCPY);
    if (copy != NULL) {
        copy->kind = ABI_MEMCPY;
        copy->copy_kind = direction;
        copy->bytes = bytes;
        copy->start = start;
        copy->end = end;
        copy->device = device;
    }
    pthread_mutex_unlock(&lock);
}

void fake_graph(uint32_t device, uint32_t graph, uint64_t start, uint64_t end) {
    pthread_mutex_lock(&lock);
    struct abi_graph *whole = room(ABI_GRAPH);
    if (whole != NULL) {
        whole->kind = ABI_GRAPH;
        whole->start = start;
        whole->end = end;
        whole->device = device;
        whole->graph = graph;
    }
    pthread_mutex_unlock(&lock);
}

void fake_memset(uint64_t bytes, uint32_t device, uint64_t start, uint64_t end) {
    pthread_mutex_lock(&lock);
    struct abi_memset *memset = room(ABI_MEMSET);
    if (memset != NULL) {
        memset->kind = ABI_MEMSET;
        memset->bytes = bytes;
        memset->start = start;
        memset->end = end;
        memset->device = device;
    }
    pthread_mutex_unlock(&lock);
}

void fake_overhead(uint64_t start, uint64_t end) {
    pthread_mutex_lock(&lock);
    struct abi_overhead *overhead = room(ABI_OVERHEAD);
    if (overhead != NULL) {
        overhead->kind = ABI_OVERHEAD;
        overhead->start = start;
        overhead->end = end;
    }
    pthread_mutex_unlock(&lock);
}

/* A record of a kind that nobody knows. */
void fake_unknown(void) {
    pthread_mutex_lock(&lock);
    struct abi_record *record = room(KINDS + 1);
    if (record != NULL)
        record->kind = KINDS + 1;
    pthread_mutex_unlock(&lock);
}

/* Records that CUPTI itself lost. */
void fake_lost(uint64_t records) {
    pthread_mutex_lock(&lock);
    dropped += records;
    pthread_mutex_unlock(&lock);
}
