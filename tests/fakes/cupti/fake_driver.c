/* A libcuda.so.1 of what the injected library asks of the driver: CUPTI is told of its calls, and devices have names. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "include/abi.h"

_Atomic(void (*)(uint32_t function)) fake_driver_tells; /* set by the CUPTI that is attached */

int cuDriverGetVersion(int *version) {
    *version = 13000;
    void (*tells)(uint32_t) = fake_driver_tells;
    if (tells != NULL)
        tells(ABI_DRIVER_GET_VERSION);
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
