/* Makes known numbers of known calls: `caller SCENARIO [NUMBER...]`. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "stub.h"

#define WEAK __attribute__((weak))

WEAK int cudaLaunchKernel(const void *, struct dim3, struct dim3, void **, unsigned long, void *);
WEAK int cudaLaunchKernel_ptsz(const void *, struct dim3, struct dim3, void **, unsigned long, void *);
WEAK int cudaLaunchCooperativeKernel(const void *, struct dim3, struct dim3, void **, unsigned long, void *);
WEAK int cudaLaunchKernelExC(const struct launch_config *, const void *, void **);
WEAK int cudaGraphLaunch(void *, void *);
WEAK int cudaMalloc(void **, unsigned long);
WEAK int cudaMallocAsync(void **, unsigned long, void *);
WEAK int cudaMallocPitch(void **, unsigned long *, unsigned long, unsigned long);
WEAK int cudaHostAlloc(void **, unsigned long, unsigned);
WEAK int cudaFree(void *);
WEAK int cudaFreeAsync(void *, void *);
WEAK int cudaFreeHost(void *);
WEAK int cudaMemcpy(void *, const void *, unsigned long, int);
WEAK int cudaMemcpyAsync(void *, const void *, unsigned long, int, void *);
WEAK int cudaMemcpy2D(void *, unsigned long, const void *, unsigned long, unsigned long, unsigned long, int);
WEAK int cudaMemcpy3D(const struct copy_3d *);
WEAK int cudaMemset(void *, int, unsigned long);
WEAK int cudaDeviceSynchronize(void);
WEAK int cudaStreamSynchronize(void *);
WEAK int cudaStreamWaitEvent(void *, void *, unsigned);
WEAK int __cudaGetKernel(void **, const void *);
WEAK int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
WEAK int cuLaunchKernelEx(const struct launch_config *, void *, void **, void **);
WEAK int cuMemAlloc_v2(unsigned long *, unsigned long);
WEAK int cuMemFree_v2(unsigned long);
WEAK int cuMemcpyHtoD_v2(unsigned long, const void *, unsigned long);
WEAK int cuMemcpyDtoHAsync_v2_ptsz(void *, unsigned long, unsigned long, void *);
WEAK int cuMemsetD32_v2(unsigned long, unsigned, unsigned long);
WEAK int cuModuleLoad(void **, const char *);
WEAK int cuModuleGetFunction(void **, void *, const char *);
WEAK int cuFuncGetName(const char **, void *);
WEAK int cuKernelGetName(const char **, void *);
WEAK int cuCtxSynchronize(void);
WEAK int ncclAllReduce(const void *, void *, unsigned long, int, int, void *, void *);
WEAK int pncclAllReduce(const void *, void *, unsigned long, int, int, void *, void *);
WEAK int ncclReduce(const void *, void *, unsigned long, int, int, int, void *, void *);
WEAK int ncclBcast(void *, unsigned long, int, int, void *, void *);
WEAK int ncclSend(const void *, unsigned long, int, int, void *, void *);
WEAK int hipLaunchKernel(const void *, struct dim3, struct dim3, void **, unsigned long, void *);
WEAK int hipMalloc(void **, unsigned long);
WEAK int hipMemcpyWithStream(void *, const void *, unsigned long, int, void *);
WEAK int hipDeviceSynchronize(void);

static long numbers[8];
static const struct dim3 GRID = {2, 3, 5}, BLOCK = {32, 4, 1};
#define KERNEL(n) ((void *)(0x10000ul + 0x100 * (n)))
#define COMMUNICATOR(n) ((void *)(0xc0000ul + 0x100 * (n)))

/* COUNT launches of three kernels in turn. */
static void *launch(void *count)
{
	for (long i = 0; i < (long)count; i++)
		cudaLaunchKernel(KERNEL(i % 3), GRID, BLOCK, 0, 1024 + i % 3, 0);
	return 0;
}

static void in_threads(void)
{
	pthread_t threads[16];

	for (long i = 0; i < numbers[0]; i++)
		pthread_create(&threads[i], 0, launch, (void *)numbers[1]);
	for (long i = 0; i < numbers[0]; i++)
		pthread_join(threads[i], 0);
}

/* Parent, child, and what the child then runs. */
static void forks(char *self)
{
	char count[32], *again[] = {self, "threads", "1", count, 0};

	sprintf(count, "%ld", numbers[2]);
	launch((void *)numbers[0]);
	if (!fork()) {
		launch((void *)numbers[1]);
		execv(self, again);
		_exit(1);
	}
	wait(0);
}

static void loads(const char *path)
{
	int (*call)(const void *, struct dim3, struct dim3, void **, unsigned long, void *);

	for (long i = 0; i < numbers[0]; i++) {
		void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);

		call = dlsym(library, "cudaLaunchKernel");
		for (long k = 0; k < numbers[1]; k++)
			call(KERNEL(0), GRID, BLOCK, 0, 0, 0);
		dlclose(library);
	}
}

static void kinds_of_launch(void)
{
	struct launch_config config = {{7, 1, 1}, {11, 1, 1}, 96, (void *)0x51};
	void *stream = (void *)0x52;

	cudaLaunchKernel_ptsz(KERNEL(1), GRID, BLOCK, 0, 1, stream);
	cudaLaunchCooperativeKernel(KERNEL(2), GRID, BLOCK, 0, 2, stream);
	for (int i = 0; i < 3; i++)
		cudaLaunchKernelExC(&config, KERNEL(3), 0);
	for (int i = 0; i < 5; i++)
		cudaGraphLaunch((void *)0x6a, stream);
	if (cuLaunchKernel)
		cuLaunchKernel(KERNEL(4), 2, 3, 5, 32, 4, 1, 77, stream, 0, 0);
	if (cuLaunchKernelEx)
		cuLaunchKernelEx(&config, KERNEL(5), 0, 0);
}

static void memory(void)
{
	void *a, *b, *c, *host;
	unsigned long pitch;

	cudaMalloc(&a, 1000);
	cudaMalloc(&b, 7000);
	cudaFree(b);
	cudaMallocAsync(&b, 500, 0);
	cudaMallocPitch(&c, &pitch, 700, 3); /* 1024 * 3 */
	cudaHostAlloc(&host, 123, 0);
	cudaFreeAsync(b, 0);
	cudaFree(c);
	cudaFreeHost(host);
	cudaFree(0);
	cudaMalloc(&b, 1ul << 41); /* refused */
	if (numbers[0])
		pause();
}

static void copies(void)
{
	struct copy_3d volume = {.extent = {64, 3, 2}, .kind = 3};

	for (int kind = 0; kind < 5; kind++)
		for (int i = 0; i <= kind; i++)
			cudaMemcpy(0, 0, 1000ul << kind, kind);
	cudaMemcpyAsync(0, 0, 1, 1, (void *)0x53);
	cudaMemcpyAsync(0, 0, 0, 1, (void *)0x53);
	cudaMemcpy2D(0, 512, 0, 512, 100, 7, 2);
	cudaMemcpy3D(&volume);
	cudaMemset(0, 0, 4099);
	if (cuMemcpyHtoD_v2)
		cuMemcpyHtoD_v2(0, 0, 65536);
	if (cuMemcpyDtoHAsync_v2_ptsz)
		cuMemcpyDtoHAsync_v2_ptsz(0, 0, 65537, 0);
	if (cuMemsetD32_v2)
		cuMemsetD32_v2(0, 0, 11);
}

static EXPORT void waits(void)
{
	for (int i = 0; i < 3; i++)
		cudaDeviceSynchronize();
	for (int i = 0; i < 5; i++)
		cudaStreamSynchronize((void *)0x54);
	cudaStreamWaitEvent((void *)0x54, (void *)0x55, 0);
}

static void collectives(void)
{
	ncclAllReduce(0, 0, 1000, 6, 0, COMMUNICATOR(1), 0);  /* half */
	pncclAllReduce(0, 0, 1000, 8, 0, COMMUNICATOR(1), 0); /* double */
	ncclAllReduce(0, 0, 10, 7, 0, COMMUNICATOR(2), 0);    /* float */
	ncclReduce(0, 0, 17, 9, 0, 0, COMMUNICATOR(1), 0);    /* bfloat16, communicator on the stack */
	ncclBcast(0, 19, 0, 0, COMMUNICATOR(2), 0);           /* calls ncclBroadcast */
	ncclSend(0, 23, 4, 1, COMMUNICATOR(2), 0);            /* int64 */
	ncclSend(0, 23, 99, 1, COMMUNICATOR(2), 0);           /* a type we do not know */
}

/* Three kernels of three families, NUMBERS[k] launches of kernel k. */
#define HOST_STUB(name) EXPORT void name(void) { USE(#name); }
HOST_STUB(ampere_sgemm_128x64_nn)
HOST_STUB(softmax_warp_forward)
HOST_STUB(fmha_v2_flash_attention_fp16_sm80_kernel)

static void families(void)
{
	void *stubs[] = {ampere_sgemm_128x64_nn, softmax_warp_forward,
			 fmha_v2_flash_attention_fp16_sm80_kernel};

	for (int k = 0; k < 3; k++)
		for (long i = 0; i < numbers[k]; i++)
			cudaLaunchKernel(stubs[k], GRID, BLOCK, 0, 0, 0);
}

/* NUMBERS[0] launches a second for NUMBERS[1] ms, in bursts of a millisecond, each with NUMBERS[2]
 * steps of work; prints how many. */
static void steady(void)
{
	struct timespec now, begun;
	long done = 0, wanted, passed_us = 0;

	clock_gettime(CLOCK_MONOTONIC, &begun);
	while (passed_us < numbers[1] * 1000) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		passed_us = (now.tv_sec - begun.tv_sec) * 1000000 + (now.tv_nsec - begun.tv_nsec) / 1000;
		for (wanted = numbers[0] * passed_us / 1000000; done < wanted; done++) {
			cudaLaunchKernel(ampere_sgemm_128x64_nn, GRID, BLOCK, 0, 0, 0);
			for (volatile long step = 0; step < numbers[2]; step++)
				;
		}
		usleep(500);
	}
	printf("%ld\n", done);
}

static void names(void)
{
	void *handle;

	const char *name;

	__cudaGetKernel(&handle, (void *)0x1234);
	if (!cuModuleLoad)
		return;
	cuModuleLoad(&handle, "/opt/kernels/a.cubin");
	cuModuleGetFunction(&handle, (void *)0xab0000, "softmax_kernel");
	cuModuleGetFunction(&handle, (void *)0xab0000, "");
	cuFuncGetName(&name, handle);
	cuKernelGetName(&name, (void *)0xab0001);
}

static void failures(void)
{
	struct dim3 none = {0, 1, 1};

	for (int i = 0; i < 3; i++)
		cudaLaunchKernel(0, GRID, BLOCK, 0, 0, 0);
	for (int i = 0; i < 5; i++)
		cudaLaunchKernel(KERNEL(0), none, BLOCK, 0, 0, 0);
	launch((void *)7);
}

/* Driver calls from deeper in the stack than runtime calls that have ended. */
static EXPORT int deeper(int depth)
{
	volatile char room[256];

	room[0] = depth;
	if (depth)
		return deeper(depth - 1) + room[0];
	return cuLaunchKernel(KERNEL(9), 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
}

static void nested(void)
{
	for (int i = 0; i < numbers[0]; i++) {
		launch((void *)1);
		deeper(i % 5);
	}
}

static void hip(void)
{
	void *pointer;

	for (int i = 0; i < 13; i++)
		hipLaunchKernel(KERNEL(1), GRID, BLOCK, 0, 640, 0);
	hipMalloc(&pointer, 4000);
	hipMemcpyWithStream(0, 0, 2048, 2, 0);
	hipDeviceSynchronize();
}

static void many_kernels(void)
{
	for (long i = 0; i < numbers[0]; i++)
		cudaLaunchKernel(KERNEL(i), GRID, BLOCK, 0, 0, 0);
	for (long i = 0; i < numbers[1]; i++) {
		void *pointer;

		cudaMalloc(&pointer, 10);
	}
}

static void looks_up(void)
{
	void *handle;

	for (int i = 0; i < 200; i++)
		cuModuleGetFunction(&handle, KERNEL(i), "a_name_that_takes_some_room");
}

int main(int count, char **words)
{
	const char *what = words[1], *path = "";

	setvbuf(stdout, 0, _IONBF, 0);
	if (getenv("WAIT"))
		getchar();
	for (int i = 2, n = 0; i < count && n < 8; i++) {
		if (words[i][0] == '/')
			path = words[i];
		else
			numbers[n++] = atol(words[i]);
	}
#define SCENARIO(name, call)                                                                       \
	if (!strcmp(what, name))                                                                   \
	call
	SCENARIO("threads", in_threads());
	SCENARIO("fork", forks(words[0]));
	SCENARIO("load", loads(path));
	SCENARIO("launches", kinds_of_launch());
	SCENARIO("memory", memory());
	SCENARIO("copies", copies());
	SCENARIO("waits", waits());
	SCENARIO("collectives", collectives());
	SCENARIO("names", names());
	SCENARIO("families", families());
	SCENARIO("steady", steady());
	SCENARIO("failures", failures());
	SCENARIO("nested", nested());
	SCENARIO("hip", hip());
	SCENARIO("many", many_kernels());
	SCENARIO("look up", looks_up());
	SCENARIO("exec", (memory(), (unsetenv("WAIT"), execl(path, path, "memory", (char *)0))));
	SCENARIO("hang", cudaStreamSynchronize(FOREVER));
	puts("done");
	/* The process lives until its counts are read, where the test asks for it. */
	if (getenv("STAY"))
		getchar();
	return 0;
}
