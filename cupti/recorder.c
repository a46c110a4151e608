#define _GNU_SOURCE
#include "recorder.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "buffers.h"
#include "libraries.h"

static struct abi_calls cupti;
static struct driver_calls driver;
static struct table *table;
static void *subscriber;
static bool attached; /* of this library's thread */
static _Thread_local bool detaching; /* in the call that CUPTI may be taken out of; threads of the application make it too */
static bool whole_graphs;
static int on_kinds[8];
static int on_count;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void took(uint64_t *sum, uint64_t *longest, uint64_t begun_ns) {
    uint64_t ns = now_ns() - begun_ns;
    table_begin(table);
    *sum += ns;
    if (ns > *longest)
        *longest = ns;
    table_end(table);
}

/* CUPTI calls these two from threads of the application. */
static void requested(uint8_t **buffer, size_t *size, size_t *most_records) {
    *buffer = buffers_take();
    *size = *buffer ? BUFFER_BYTES : 0;
    *most_records = 0;
}

static void completed(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)size;
    if (buffer != NULL)
        buffers_fill((struct filled){buffer, valid < BUFFER_BYTES ? valid : BUFFER_BYTES, context, stream});
}

const char *recorder_open(struct table *of) {
    table = of;
    void *library = find_cupti();
    if (library == NULL)
        return "expected libcupti.so of CUDA 12 or 13";
#define TAKE(name)                                   \
    *(void **)&cupti.name = dlsym(library, #name);   \
    if (cupti.name == NULL)                          \
        return "expected " #name " in libcupti.so";
    TAKE(cuptiGetVersion)
    TAKE(cuptiActivityRegisterCallbacks)
    TAKE(cuptiActivityEnable)
    TAKE(cuptiActivityDisable)
    TAKE(cuptiActivityFlushAll)
    TAKE(cuptiActivityGetNextRecord)
    TAKE(cuptiActivityGetNumDroppedRecords)
    TAKE(cuptiActivitySetAttribute)
    TAKE(cuptiSubscribe)
    TAKE(cuptiEnableCallback)
    TAKE(cuptiFinalize)
#undef TAKE
    if (cupti.cuptiGetVersion(&table_header(table)->cupti_version) != ABI_SUCCESS)
        return "expected CUPTI to tell its version";
    if (table_header(table)->cupti_version < ABI_DETACHES)
        return "expected CUPTI of CUDA 12.6 or later: before, it cannot leave a process safely";
    driver = find_driver();
    const char *graphs = secure_getenv("POINTILLIST_GPU_TIME_GRAPHS");
    whole_graphs = graphs != NULL && strcmp(graphs, "whole") == 0;
    return buffers_make() == 0 ? NULL : "expected memory for buffers";
}

static void set(int attribute, size_t value) {
    size_t size = sizeof value;
    cupti.cuptiActivitySetAttribute(attribute, &size, &value);
}

static void take_out(void) {
    detaching = false;
    attached = cupti.cuptiFinalize() != ABI_SUCCESS;
}

/* CUPTI may be taken out where it tells that a call of the driver has ended. */
static void called(void *unused, int domain, uint32_t function, const struct abi_call_site *call) {
    (void)unused;
    if (domain == ABI_DRIVER_DOMAIN && function == ABI_DRIVER_GET_VERSION && call->site == ABI_EXIT && detaching)
        take_out();
}

static void count_refused(void) { table_header(table)->buffers_refused += buffers_refused(); }

static int attach(void) {
    int code = cupti.cuptiSubscribe(&subscriber, called, NULL);
    if (code != ABI_SUCCESS)
        return code;
    attached = true;
    /* Device memory: a few small buffers, where CUPTI would take 250 of 3 MB. */
    set(ABI_DEVICE_BUFFER_SIZE, 1 << 20);
    set(ABI_DEVICE_BUFFER_POOL_LIMIT, 8);
    set(ABI_DEVICE_BUFFER_PRE_ALLOCATE, 1);
    return cupti.cuptiActivityRegisterCallbacks(requested, completed);
}

static int enable(int kind) {
    int code = cupti.cuptiActivityEnable(kind);
    if (code == ABI_SUCCESS)
        on_kinds[on_count++] = kind;
    return code;
}

int recorder_on(void) {
    static const int kinds[] = {ABI_CONCURRENT_KERNEL, ABI_MEMCPY, ABI_MEMSET, ABI_MEMCPY_PEER};
    struct header *header = table_header(table);
    uint64_t begun_ns = now_ns();
    int code = attached ? ABI_SUCCESS : attach();
    on_count = 0;
    table_begin(table);
    count_refused(); /* behind the window before */
    table_end(table);
    for (size_t kind = 0; code == ABI_SUCCESS && kind < sizeof kinds / sizeof *kinds; kind++)
        code = enable(kinds[kind]);
    if (code == ABI_SUCCESS && whole_graphs)
        code = enable(ABI_GRAPH);
    if (code == ABI_SUCCESS)
        enable(ABI_OVERHEAD);
    else if (attached) {
        recorder_off();
        recorder_detach();
    }
    took(&header->switch_on_ns, &header->switch_on_longest_ns, begun_ns);
    return code;
}

void recorder_off(void) {
    uint64_t begun_ns = now_ns();
    while (on_count)
        cupti.cuptiActivityDisable(on_kinds[--on_count]);
    struct header *header = table_header(table);
    took(&header->switch_off_ns, &header->switch_off_longest_ns, begun_ns);
}

void recorder_detach(void) {
    uint64_t begun_ns = now_ns();
    struct header *header = table_header(table);
    cupti.cuptiActivityFlushAll(ABI_FORCED); /* what has not ended comes without its end, and is counted as such */
    recorder_read();
    detaching = true;
    int ignored;
    if (driver.version != NULL && cupti.cuptiEnableCallback(1, subscriber, ABI_DRIVER_DOMAIN, ABI_DRIVER_GET_VERSION) == ABI_SUCCESS)
        driver.version(&ignored);
    if (detaching) /* it was not told */
        take_out();
    if (!attached) { /* else it stays for the next window, and keeps its buffers */
        buffers_reset();
        table_begin(table);
        header->detaches++;
        table_end(table);
    }
    took(&header->detach_ns, &header->detach_longest_ns, begun_ns);
}

void recorder_flush(void) {
    uint64_t begun_ns = now_ns();
    cupti.cuptiActivityFlushAll(0);
    struct header *header = table_header(table);
    took(&header->flush_ns, &header->flush_longest_ns, begun_ns);
}

static void read_buffer(const struct filled *filled) {
    struct abi_record *record = NULL;
    while (cupti.cuptiActivityGetNextRecord(filled->bytes, filled->valid, &record) == ABI_SUCCESS)
        table_add(table, record);
    size_t lost = 0;
    if (cupti.cuptiActivityGetNumDroppedRecords(filled->context, filled->stream, &lost) == ABI_SUCCESS)
        table_header(table)->records_lost_cupti += lost;
}

/* The driver's names of devices that were seen: the process may have been given some of the host's GPUs only. */
static void name_devices(void) {
    static uint32_t asked;
    uint32_t unasked = table_devices(table) & ~asked;
    asked |= unasked;
    for (int number = 0; unasked != 0 && number < DEVICES && driver.device != NULL && driver.uuid != NULL; number++) {
        int device;
        uint8_t uuid[16];
        if ((unasked >> number & 1) == 0 || driver.device(&device, number) != 0 || driver.uuid(uuid, device) != 0)
            continue;
        table_begin(table);
        memcpy(table_header(table)->uuid[number], uuid, sizeof uuid);
        table_end(table);
    }
}

bool recorder_read(void) {
    bool any = false;
    for (struct filled filled = buffers_next(); filled.bytes != NULL; filled = buffers_next(), any = true) {
        table_begin(table);
        read_buffer(&filled);
        count_refused();
        table_end(table);
        buffers_give(filled.bytes);
        name_devices();
    }
    return any;
}
