/* A libcuda of our own. */
#include "stub.h"

static unsigned long next = 0x500000000;

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
		   unsigned bz, unsigned shared, void *stream, void **arguments, void **extra)
{
	USE(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);
	return 0;
}

int cuLaunchKernelEx(const struct launch_config *config, void *function, void **arguments, void **extra)
{
	USE(config, function, arguments, extra);
	return 0;
}

int cuMemAlloc_v2(unsigned long *pointer, unsigned long bytes)
{
	*pointer = __atomic_fetch_add(&next, (bytes + 4095) & ~4095ul, __ATOMIC_RELAXED);
	return 0;
}

int cuMemFree_v2(unsigned long pointer)
{
	USE(pointer);
	return 0;
}

int cuMemcpyHtoD_v2(unsigned long to, const void *from, unsigned long bytes)
{
	USE(to, from, bytes);
	return 0;
}

int cuMemcpyDtoHAsync_v2_ptsz(void *to, unsigned long from, unsigned long bytes, void *stream)
{
	USE(to, from, bytes, stream);
	return 0;
}

int cuMemsetD32_v2(unsigned long pointer, unsigned value, unsigned long count)
{
	USE(pointer, value, count);
	return 0;
}

int cuModuleLoad(void **module, const char *name)
{
	USE(name);
	*module = (void *)0xab0000;
	return 0;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
	if (!name[0])
		return 500; /* CUDA_ERROR_NOT_FOUND */
	*function = (char *)module + name[0];
	return 0;
}

/* The driver made its names when it loaded the module: their pages are there. */
static char told[16];

static const char *tell(void)
{
	__builtin_memcpy(told, "_Z4toldPf", 10);
	return told;
}

int cuFuncGetName(const char **name, void *function)
{
	USE(function);
	*name = tell();
	return 0;
}

int cuKernelGetName(const char **name, void *kernel)
{
	if (kernel == (void *)0xab0001)
		return 400; /* CUDA_ERROR_INVALID_HANDLE */
	*name = tell();
	return 0;
}

int cuCtxSynchronize(void)
{
	return 0;
}
