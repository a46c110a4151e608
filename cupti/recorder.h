/* CUPTI's activity records, on and off on a live process. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "table.h"

/* Find CUPTI and take its calls. POINTILLIST_GPU_TIME_GRAPHS=whole has graphs recorded as wholes, else their kernels are:
 * for the life of the process, as changing between the two ends it. Returns NULL, or what was expected. */
const char *recorder_open(struct table *table);

/* Attach and start recording. Returns CUPTI's code, 0 for success, ABI_MULTIPLE_SUBSCRIBERS where another profiler is. */
int recorder_on(void);

/* Stop recording. What was launched before is still told when it ends. */
void recorder_off(void);

/* Take CUPTI out of the process: attached it slows launches down by a quarter also when it records nothing. */
void recorder_detach(void);

/* Ask CUPTI for buffers whose records are complete. */
void recorder_flush(void);

/* Add up the buffers that were filled; false when none was. */
bool recorder_read(void);
