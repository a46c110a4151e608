#define _GNU_SOURCE
#include "libraries.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNTIMES = 4 };

static const char *const names[] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
enum { NAMES = sizeof names / sizeof *names };

/* The folders of the CUDA runtimes that the process has loaded. */
struct runtimes {
    char folders[RUNTIMES][PATH_MAX];
    int count;
};

/* Called with a lock that dlopen() of another thread waits for while it holds the loader's: nothing is opened here. */
static int take_runtime(struct dl_phdr_info *info, size_t size, void *found) {
    (void)size;
    struct runtimes *runtimes = found;
    const char *slash = strrchr(info->dlpi_name, '/');
    if (slash == NULL || strncmp(slash + 1, "libcudart", 9) != 0)
        return 0;
    size_t length = (size_t)(slash + 1 - info->dlpi_name);
    if (length >= PATH_MAX)
        return 0;
    char *folder = runtimes->folders[runtimes->count++];
    memcpy(folder, info->dlpi_name, length);
    folder[length] = 0;
    return runtimes->count == RUNTIMES;
}

static void *open_in(const char *folder, const char *below, int more) {
    for (int name = 0; name < NAMES; name++) {
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s%s%s", folder, below, names[name]) >= (int)sizeof path)
            continue;
        void *found = dlopen(path, RTLD_LAZY | RTLD_LOCAL | more);
        if (found != NULL)
            return found;
    }
    return NULL;
}

/* Where CUPTI lies from the folder of the CUDA runtime: wheels of CUDA 13 and 12, toolkits. */
static void *open_beside_runtime(void) {
    static const char *const below[] = {"", "../../cuda_cupti/lib/", "../extras/CUPTI/lib64/"};
    static struct runtimes runtimes;
    dl_iterate_phdr(take_runtime, &runtimes);
    void *found = NULL;
    for (int runtime = 0; found == NULL && runtime < runtimes.count; runtime++)
        for (size_t at = 0; found == NULL && at < sizeof below / sizeof *below; at++)
            found = open_in(runtimes.folders[runtime], below[at], 0);
    return found;
}

void *find_cupti(void) {
    const char *given = secure_getenv("POINTILLIST_CUPTI");
    if (given != NULL && *given != 0)
        return dlopen(given, RTLD_LAZY | RTLD_LOCAL);
    void *found = open_in("", "", RTLD_NOLOAD);
    if (found == NULL)
        found = open_beside_runtime();
    static const char *const folders[] = {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/extras/CUPTI/lib64/"};
    for (size_t folder = 0; found == NULL && folder < sizeof folders / sizeof *folders; folder++)
        found = open_in(folders[folder], "", 0);
    return found;
}

struct driver_calls find_driver(void) {
    struct driver_calls calls = {0};
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL | RTLD_NOLOAD);
    if (driver == NULL)
        return calls;
    *(void **)&calls.version = dlsym(driver, "cuDriverGetVersion");
    *(void **)&calls.device = dlsym(driver, "cuDeviceGet");
    *(void **)&calls.uuid = dlsym(driver, "cuDeviceGetUuid_v2");
    if (calls.uuid == NULL)
        *(void **)&calls.uuid = dlsym(driver, "cuDeviceGetUuid");
    return calls;
}
