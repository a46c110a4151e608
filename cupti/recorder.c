#define _GNU_SOURCE
#include "recorder.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "buffers.h"

static struct abi_calls cupti;
static struct table *table;
static void *subscriber;
static bool attached; /* of this library's thread */
static _Thread_local bool detaching; /* in the call that CUPTI may be taken out of; threads of the application make it too */
static int on_kinds[8];
static int on_count;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void took(uint64_t *sum, uint64_t *longest, uint64_t begun_ns) {
    uint64_t ns = now_ns() - begun_ns;
    *sum += ns;
    if (ns > *longest)
        *longest = ns;
}

static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
enum { NAMES = sizeof names / sizeof *names };

/* Where CUPTI lies from the folder of the CUDA runtime: wheels of CUDA 13 and 12, toolkits. */
static const char *const beside[] = {"", "../../cuda_cupti/lib/", "../extras/CUPTI/lib64/"};

static int beside_runtime(struct dl_phdr_info *info, size_t size, void *found) {
    (void)size;
    const char *slash = strrchr(info->dlpi_name, '/');
    if (slash == NULL || strncmp(slash + 1, "libcudart", 9) != 0)
        return 0;
    for (size_t folder = 0; folder < sizeof beside / sizeof *beside; folder++)
        for (int name = 0; name < NAMES; name++) {
            char path[4096];
            int length = (int)(slash + 1 - info->dlpi_name);
            if (snprintf(path, sizeof path, "%.*s%s%s", length, info->dlpi_name, beside[folder], names[name]) >= (int)sizeof path)
                continue;
            *(void **)found = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
            if (*(void **)found != NULL)
                return 1;
        }
    return 0;
}

static void *find_cupti(void) {
    const char *given = secure_getenv("POINTILLIST_CUPTI");
    if (given != NULL)
        return dlopen(given, RTLD_LAZY | RTLD_LOCAL);
    for (int name = 0; name < NAMES; name++) {
        void *loaded = dlopen(names[name], RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
        if (loaded != NULL)
            return loaded;
    }
    void *found = NULL;
    dl_iterate_phdr(beside_runtime, &found);
    static const char *const folders[] = {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/extras/CUPTI/lib64/"};
    for (size_t folder = 0; found == NULL && folder < sizeof folders / sizeof *folders; folder++)
        for (int name = 0; found == NULL && name < NAMES; name++) {
            char path[128];
            snprintf(path, sizeof path, "%s%s", folders[folder], names[name]);
            found = dlopen(path, RTLD_LAZY | RTLD_LOCAL);
        }
    return found;
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
    TAKE(cuptiUnsubscribe)
    TAKE(cuptiEnableCallback)
    TAKE(cuptiFinalize)
#undef TAKE
    if (cupti.cuptiGetVersion(&table_header(table)->cupti_version) != ABI_SUCCESS)
        return "expected CUPTI to tell its version";
    if (table_header(table)->cupti_version < ABI_DETACHES)
        return "expected CUPTI of CUDA 12.6 or later: before, it cannot leave a process safely";
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
    for (size_t kind = 0; code == ABI_SUCCESS && kind < sizeof kinds / sizeof *kinds; kind++)
        code = enable(kinds[kind]);
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
    int (*version)(int *) = NULL;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (driver != NULL)
        *(void **)&version = dlsym(driver, "cuDriverGetVersion");
    cupti.cuptiActivityFlushAll(ABI_FORCED); /* what has not ended comes without its end, and is counted as such */
    recorder_read();
    detaching = true;
    int ignored;
    if (version != NULL && cupti.cuptiEnableCallback(1, subscriber, ABI_DRIVER_DOMAIN, ABI_DRIVER_GET_VERSION) == ABI_SUCCESS)
        version(&ignored);
    if (detaching) /* it was not told */
        take_out();
    if (driver != NULL)
        dlclose(driver);
    if (!attached) { /* else it stays for the next window, and keeps its buffers */
        buffers_reset();
        header->detaches++;
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
    if (unasked == 0)
        return;
    asked |= unasked;
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (driver == NULL)
        return;
    int (*get)(int *, int), (*uuid)(void *, int);
    *(void **)&get = dlsym(driver, "cuDeviceGet");
    *(void **)&uuid = dlsym(driver, "cuDeviceGetUuid_v2"); /* of an instance, where the device is one */
    if (uuid == NULL)
        *(void **)&uuid = dlsym(driver, "cuDeviceGetUuid");
    for (int number = 0; number < DEVICES && get != NULL && uuid != NULL; number++) {
        int device;
        if ((unasked >> number & 1) && get(&device, number) == 0)
            uuid(table_header(table)->uuid[number], device);
    }
    dlclose(driver);
}

bool recorder_read(void) {
    bool any = false;
    for (struct filled filled = buffers_next(); filled.bytes != NULL; filled = buffers_next(), any = true) {
        table_begin(table);
        read_buffer(&filled);
        table_header(table)->buffers_refused += buffers_refused();
        name_devices();
        table_end(table);
        buffers_give(filled.bytes);
    }
    return any;
}
