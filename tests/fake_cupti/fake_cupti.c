/* A libcupti without a GPU: it records only what was enabled, fills the client's buffers and gives them back as the real
 * one does. What fails is said in FAKE_CUPTI_FAIL=function[,function...]; each then answers FAKE_CUPTI_CODE (35). */
#include <pthread.h>
#include <stdint.h>
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
static int64_t grid;

static int fails(const char *function) {
    const char *list = getenv("FAKE_CUPTI_FAIL");
    const char *code = getenv("FAKE_CUPTI_CODE");
    if (list == NULL || strstr(list, function) == NULL)
        return SUCCESS;
    return code ? atoi(code) : 35;
}

int cuptiGetVersion(uint32_t *version) {
    *version = 130001;
    return fails("cuptiGetVersion");
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
    return code;
}

int cuptiActivityDisable(int kind) {
    enabled[kind % KINDS] = 0;
    return fails("cuptiActivityDisable");
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
    if (!enabled[kind])
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

int cuptiSubscribe(void **subscriber, abi_callback on_call, void *unused) {
    (void)unused;
    int code = fails("cuptiSubscribe");
    if (code == SUCCESS && callback != NULL)
        code = ABI_MULTIPLE_SUBSCRIBERS;
    if (code == SUCCESS) {
        callback = on_call;
        *subscriber = &callback;
    }
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
    pthread_mutex_lock(&lock);
    callback = NULL;
    requested = NULL;
    completed = NULL;
    wanted = 0;
    buffer = NULL;
    filled = 0;
    memset(enabled, 0, sizeof enabled);
    pthread_mutex_unlock(&lock);
    return fails("cuptiFinalize");
}

/* What the driver would tell: called by the test's program. */
void fake_kernel(const char *name, uint32_t device, uint64_t start, uint64_t end, uint32_t graph) {
    pthread_mutex_lock(&lock);
    grid++;
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
