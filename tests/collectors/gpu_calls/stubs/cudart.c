/* A libcudart of our own: real names and arguments, no device. Every entry begins with `push`, as the
 * real library's do (-fno-omit-frame-pointer -fcf-protection=none). */
#include "stub.h"

static unsigned long next = 0x7000000000;

static unsigned long make(unsigned long bytes)
{
	return __atomic_fetch_add(&next, (bytes + 4095) & ~4095ul, __ATOMIC_RELAXED);
}

/* A driver that stands for libcuda, where the program has linked one. */
extern int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			  void *, void **, void **) __attribute__((weak));
extern int cuMemAlloc_v2(unsigned long *, unsigned long) __attribute__((weak));

int cudaLaunchKernel(const void *function, struct dim3 grid, struct dim3 block, void **arguments,
		     unsigned long shared, void *stream)
{
	int code = 0;

	if (cuLaunchKernel)
		code = cuLaunchKernel((void *)function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
				      shared, stream, arguments, 0);
	/* 1: cudaErrorInvalidValue, 9: cudaErrorInvalidConfiguration */
	return code ? code : !function ? 1 : grid.x ? 0 : 9;
}

int cudaLaunchKernel_ptsz(const void *function, struct dim3 grid, struct dim3 block, void **arguments,
			  unsigned long shared, void *stream)
{
	USE(function, grid, block, arguments, shared, stream);
	return 0;
}

int cudaLaunchCooperativeKernel(const void *function, struct dim3 grid, struct dim3 block,
				void **arguments, unsigned long shared, void *stream)
{
	USE(function, grid, block, arguments, shared, stream);
	return 0;
}

int cudaLaunchKernelExC(const struct launch_config *config, const void *function, void **arguments)
{
	USE(config, function, arguments);
	return 0;
}

int cudaGraphLaunch(void *graph, void *stream)
{
	USE(graph, stream);
	return 0;
}

int cudaMalloc(void **pointer, unsigned long bytes)
{
	if (bytes > 1ul << 40)
		return 2; /* cudaErrorMemoryAllocation */
	if (cuMemAlloc_v2)
		return cuMemAlloc_v2((unsigned long *)pointer, bytes);
	*pointer = (void *)make(bytes);
	return 0;
}

int cudaMallocAsync(void **pointer, unsigned long bytes, void *stream)
{
	USE(stream);
	*pointer = (void *)make(bytes);
	return 0;
}

int cudaMallocPitch(void **pointer, unsigned long *pitch, unsigned long width, unsigned long height)
{
	*pitch = (width + 511) & ~511ul;
	*pointer = (void *)make(*pitch * height);
	return 0;
}

int cudaHostAlloc(void **pointer, unsigned long bytes, unsigned flags)
{
	USE(flags);
	*pointer = (void *)make(bytes);
	return 0;
}

int cudaFree(void *pointer)
{
	USE(pointer);
	return 0;
}

int cudaFreeAsync(void *pointer, void *stream)
{
	USE(pointer, stream);
	return 0;
}

int cudaFreeHost(void *pointer)
{
	USE(pointer);
	return 0;
}

int cudaMemcpy(void *to, const void *from, unsigned long bytes, int kind)
{
	USE(to, from, bytes, kind);
	return 0;
}

int cudaMemcpyAsync(void *to, const void *from, unsigned long bytes, int kind, void *stream)
{
	USE(to, from, bytes, kind, stream);
	return 0;
}

int cudaMemcpy2D(void *to, unsigned long to_pitch, const void *from, unsigned long from_pitch,
		 unsigned long width, unsigned long height, int kind)
{
	USE(to, to_pitch, from, from_pitch, width, height, kind);
	return 0;
}

int cudaMemcpy3D(const struct copy_3d *copy)
{
	USE(copy);
	return 0;
}

int cudaMemset(void *pointer, int value, unsigned long bytes)
{
	USE(pointer, value, bytes);
	return 0;
}

int cudaDeviceSynchronize(void)
{
	pause_us(200);
	return 0;
}

int cudaStreamSynchronize(void *stream)
{
	if (stream == FOREVER)
		for (;;)
			pause_us(1000000);
	pause_us(100);
	return 0;
}

int cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
	USE(stream, event, flags);
	return 0;
}

int __cudaGetKernel(void **kernel, const void *host)
{
	*kernel = (char *)host + 0x100000;
	return 0;
}
