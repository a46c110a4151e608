/* A libcuda.so.1 of what the injected library asks of the driver: CUPTI is told of its calls, and devices have names. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "include/abi.h"

int cuDriverGetVersion(int *version) {
    *version = 13000;
    const char *path = getenv("POINTILLIST_CUPTI");
    void *cupti = path ? dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    void (*tell)(uint32_t) = NULL;
    if (cupti != NULL)
        *(void **)&tell = dlsym(cupti, "fake_driver_call");
    if (tell != NULL)
        tell(ABI_DRIVER_GET_VERSION);
    return 0;
}

int cuDeviceGet(int *device, int number) {
    *device = number + 100;
    return 0;
}

/* Sixteen times the device's number. */
int cuDeviceGetUuid_v2(void *uuid, int device) {
    memset(uuid, device - 100 + 1, 16);
    return 0;
}
