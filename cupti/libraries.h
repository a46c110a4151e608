/* NVIDIA's libraries in the process, found once, before anything is recorded: finding takes the loader's lock, which the
 * application may hold for seconds. */
#pragma once

#include <stdint.h>

/* CUPTI: POINTILLIST_CUPTI, the one that the process has loaded, the one beside its CUDA runtime, the linker's. NULL where
 * there is none. */
void *find_cupti(void);

/* What is asked of the driver; NULL what it does not have. */
struct driver_calls {
    int (*version)(int *version);
    int (*device)(int *device, int number);
    int (*uuid)(void *uuid, int device); /* of an instance, where the device is one */
};

struct driver_calls find_driver(void);
