/* A libcuda.so.1 with the true C ABI, for machines without a GPU.
 *
 * The file named by FAKE_CUDA says what happens, read anew at each call; the last line that fits
 * wins:
 *   gpus 8
 *   <gpu|*> <function|*> error CODE
 *   <gpu|*> <function|*> hang
 *   <gpu|*> to_device value MB_PER_S     <gpu|*> to_host value MB_PER_S
 *   <gpu|*> corrupt value 1              one byte comes back changed
 *   * mig value 1                        instances are shown, and no GPU
 * Copies move real bytes and take as long, on the clock of the events alone, as the rates say.
 * Each kernel runs for a millisecond.
 * FAKE_CUDA_LOG names a file that gets a line for each call: its name, and after cuMemHostAlloc how
 * many CPUs the process may use.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context { int device; } *CUcontext;
typedef struct stream { double now_ms; } *CUstream;
typedef struct event { double at_ms; } *CUevent;
typedef struct { unsigned char bytes[16]; } CUuuid;
enum { SUCCESS = 0, INVALID = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, NO_CONTEXT = 201, NO_FILE = 301 };
#define EVERY (-1)

static struct context contexts[16];
static struct stream legacy;
static CUcontext current;
static int initialized;

static void note(const char *name, int number)
{
	FILE *log = getenv("FAKE_CUDA_LOG") ? fopen(getenv("FAKE_CUDA_LOG"), "a") : NULL;
	if (!log)
		return;
	if (number >= 0)
		fprintf(log, "%s %d\n", name, number);
	else
		fprintf(log, "%s\n", name);
	fclose(log);
}

static CUresult ask(int gpu, const char *name, long *out)
{
	char line[512], who[32], what[128], verb[16];
	CUresult result = SUCCESS;
	int hang = 0;
	FILE *file = fopen(getenv("FAKE_CUDA") ? getenv("FAKE_CUDA") : "/dev/null", "r");
	while (file && fgets(line, sizeof line, file)) {
		long value = 0;
		if (sscanf(line, "gpus %ld", &value) == 1 && !strcmp(name, "gpus"))
			*out = value;
		if (sscanf(line, "%31s %127s %15s %ld", who, what, verb, &value) < 3)
			continue;
		if (strcmp(who, "*") && atoi(who) != gpu)
			continue;
		if (strcmp(what, "*") && strcmp(what, name))
			continue;
		hang = !strcmp(verb, "hang");
		result = strcmp(verb, "error") ? SUCCESS : (CUresult)value;
		if (!strcmp(verb, "value") && out)
			*out = value;
	}
	if (file)
		fclose(file);
	while (hang)
		pause();
	return result;
}

static long gpus(void)
{
	long count = 8;
	ask(EVERY, "gpus", &count);
	return count;
}

/* What every call after cuInit begins with. */
static CUresult begin(int gpu, const char *name)
{
	note(name, -1);
	return initialized ? ask(gpu, name, NULL) : NOT_INITIALIZED;
}
static int here(void) { return current ? current->device : EVERY; }
static CUresult inside(const char *name)
{
	CUresult result = begin(here(), name);
	return result == SUCCESS && !current ? NO_CONTEXT : result;
}

CUresult cuInit(unsigned flags)
{
	CUresult result = ask(EVERY, __func__, NULL);
	(void)flags;
	note(__func__, -1);
	initialized = result == SUCCESS && gpus() > 0;
	return result ? result : initialized ? SUCCESS : NO_DEVICE;
}
CUresult cuGetErrorName(CUresult code, const char **name)
{
	*name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 100 ? "CUDA_ERROR_NO_DEVICE" :
		code == 214 ? "CUDA_ERROR_ECC_UNCORRECTABLE" : "CUDA_ERROR_UNKNOWN";
	return SUCCESS;
}
CUresult cuDeviceGetCount(int *count) { *count = (int)gpus(); return begin(EVERY, __func__); }
/* CUDA's order is not NVML's: the last comes first. */
CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	*device = (int)gpus() - 1 - ordinal;
	return begin(*device, __func__);
}
CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
	long mig = 0;
	ask(device, "mig", &mig);
	memset(uuid, mig ? 0xff : 0, sizeof *uuid);
	uuid->bytes[15] = (unsigned char)device;
	return begin(device, __func__);
}
CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice device)
{
	snprintf(text, length, "0000:%02X:00.0", 0xa0 + device);
	return begin(device, __func__);
}
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	contexts[device].device = device;
	*context = &contexts[device];
	return begin(device, __func__);
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	current = NULL;
	return begin(device, __func__);
}
CUresult cuCtxSetCurrent(CUcontext context)
{
	current = context;
	return begin(here(), __func__);
}
CUresult cuMemHostAlloc(void **memory, size_t size, unsigned flags)
{
	cpu_set_t cpus;
	CUresult result = inside(__func__);
	(void)flags;
	sched_getaffinity(0, sizeof cpus, &cpus);
	note("cpus", CPU_COUNT(&cpus));
	if (result == SUCCESS)
		*memory = malloc(size);
	return result;
}
CUresult cuMemFreeHost(void *memory) { free(memory); return inside(__func__); }
CUresult cuMemAlloc_v2(CUdeviceptr *memory, size_t size)
{
	CUresult result = inside(__func__);
	if (result == SUCCESS)
		*memory = (CUdeviceptr)(uintptr_t)malloc(size);
	return result;
}
CUresult cuMemFree_v2(CUdeviceptr memory)
{
	free((void *)(uintptr_t)memory);
	return inside(__func__);
}
CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	CUresult result = inside(__func__);
	(void)flags;
	*stream = calloc(1, sizeof **stream);
	return result;
}
CUresult cuStreamSynchronize(CUstream stream) { (void)stream; return inside(__func__); }
CUresult cuStreamDestroy_v2(CUstream stream) { free(stream); return inside(__func__); }
CUresult cuEventCreate(CUevent *event, unsigned flags)
{
	CUresult result = inside(__func__);
	(void)flags;
	*event = calloc(1, sizeof **event);
	return result;
}
CUresult cuEventRecord(CUevent event, CUstream stream)
{
	event->at_ms = (stream ? stream : &legacy)->now_ms;
	return inside(__func__);
}
CUresult cuEventSynchronize(CUevent event) { (void)event; return inside(__func__); }
CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
	*ms = (float)(to->at_ms - from->at_ms);
	return inside(__func__);
}
CUresult cuEventDestroy_v2(CUevent event) { free(event); return inside(__func__); }

static void pass(CUstream stream, const char *way, size_t size)
{
	long mb_per_s = 55000;
	ask(here(), way, &mb_per_s);
	stream->now_ms += (double)size / (double)mb_per_s / 1000.0;
}
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream)
{
	memcpy((void *)(uintptr_t)to, from, size);
	pass(stream, "to_device", size);
	return inside(__func__);
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size)
{
	memcpy((void *)(uintptr_t)to, from, size);
	return inside(__func__);
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream)
{
	long corrupt = 0;
	memcpy(to, (const void *)(uintptr_t)from, size);
	ask(here(), "corrupt", &corrupt);
	if (corrupt)
		((unsigned char *)to)[size - 1] ^= 1;
	pass(stream, "to_host", size);
	return inside(__func__);
}
CUresult cuModuleLoad(void **module, const char *path)
{
	CUresult result = inside(__func__);
	*module = contexts;
	return result ? result : access(path, R_OK) ? NO_FILE : SUCCESS;
}
CUresult cuModuleGetFunction(void **function, void *module, const char *name)
{
	(void)module, (void)name;
	*function = &legacy;
	return inside(__func__);
}
CUresult cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
			unsigned block_z, unsigned shared, CUstream stream, void **arguments, void **extra)
{
	(void)function, (void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z;
	(void)shared, (void)arguments, (void)extra;
	(stream ? stream : &legacy)->now_ms += 1;
	return inside(__func__);
}
CUresult cuCtxSynchronize(void) { return inside(__func__); }
