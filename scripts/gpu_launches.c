/* A program that launches empty kernels through the driver, steered by lines on stdin as gpu_workload.py is.
 *
 *   steps N     launches N kernels and waits for them; prints the seconds that took
 *   bursts N    launches N kernels in bursts of 0.3 s every 1.8 s; prints how many it launched
 *
 * Built by `make gpu-kit`; needs no CUDA header and no compiler on the GPU machine. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char ptx[] =
    ".version 7.0\n.target sm_50\n.address_size 64\n.visible .entry pointillist_empty()\n{\nret;\n}\n";

static int (*cuInit)(unsigned), (*cuDeviceGet)(int *, int), (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuCtxSetCurrent)(void *), (*cuModuleLoadData)(void **, const void *), (*cuModuleGetFunction)(void **, void *, const char *);
static int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*cuCtxSynchronize)(void);
static void *kernel;

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static void must(int code, const char *what) {
    if (code != 0) {
        printf("%s: %d\n", what, code);
        exit(1);
    }
}

static void open_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL)
        must(1, "libcuda.so.1");
#define TAKE(name)                                 \
    *(void **)&name = dlsym(driver, #name);        \
    if (name == NULL)                              \
        must(1, #name)
    TAKE(cuInit);
    TAKE(cuDeviceGet);
    TAKE(cuDevicePrimaryCtxRetain);
    TAKE(cuCtxSetCurrent);
    TAKE(cuModuleLoadData);
    TAKE(cuModuleGetFunction);
    TAKE(cuLaunchKernel);
    TAKE(cuCtxSynchronize);
}

static void launch(long number) {
    for (long i = 0; i < number; i++)
        must(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    must(cuCtxSynchronize(), "cuCtxSynchronize");
}

static long bursts(long number) {
    long made = 0;
    while (made < number) {
        double begun = now();
        for (; now() - begun < 0.3 && made < number; made += 100)
            launch(100);
        usleep(1500000);
    }
    return made;
}

int main(void) {
    int device;
    void *context, *module;
    char what[16];
    long number;
    const char *cpu = getenv("GPU_CHECK_CPU");

    open_driver();
    must(cuInit(0), "cuInit");
    must(cuDeviceGet(&device, 0), "cuDeviceGet");
    must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    must(cuModuleLoadData(&module, ptx), "cuModuleLoadData");
    must(cuModuleGetFunction(&kernel, module, "pointillist_empty"), "cuModuleGetFunction");
    launch(1000);
    if (cpu != NULL) { /* this thread alone: the library's own goes where it will */
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(atoi(cpu), &one);
        sched_setaffinity(0, sizeof one, &one);
    }
    puts("ready");
    fflush(stdout);
    while (scanf("%15s %ld", what, &number) == 2) {
        double begun = now();
        if (strcmp(what, "bursts") == 0) {
            printf("%ld\n", bursts(number));
        } else {
            launch(number);
            printf("%.9f\n", now() - begun);
        }
        fflush(stdout);
    }
    return 0;
}
