/* Launches kernels of a cubin through the driver: `driver launches` empty ones, `driver cubin` busy ones. On a device that
 * the cubin is not for, the driver compiles the PTX beside it. Needs no CUDA header and no toolkit. */
#include "loop.h"

#include <dlfcn.h>

static int (*cuInit)(unsigned), (*cuDeviceGet)(int *, int), (*cuDevicePrimaryCtxRetain)(void **, int);
static int (*cuCtxSetCurrent)(void *), (*cuModuleLoad)(void **, const char *), (*cuModuleGetFunction)(void **, void *, const char *);
static int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int (*cuCtxSynchronize)(void), (*cuEventCreate)(void **, unsigned), (*cuEventRecord)(void *, void *);
static int (*cuEventElapsedTime)(float *, void *, void *), (*cuGetErrorName)(int, const char **);
static void *kernel, *begun, *ended;

static void must(int code, const char *what) {
    const char *name = "?";
    if (code == 0)
        return;
    if (cuGetErrorName != NULL)
        cuGetErrorName(code, &name);
    printf("%s: %s (%d)\n", what, name, code);
    exit(1);
}

static void open_driver(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        puts("expected the driver's library, libcuda.so.1: it is not there");
        exit(1);
    }
#define TAKE(name)                                       \
    *(void **)&name = dlsym(driver, #name);              \
    if (name == NULL) {                                  \
        puts("expected " #name " in libcuda.so.1");      \
        exit(1);                                         \
    }
    TAKE(cuGetErrorName)
    TAKE(cuInit)
    TAKE(cuDeviceGet)
    TAKE(cuDevicePrimaryCtxRetain)
    TAKE(cuCtxSetCurrent)
    TAKE(cuModuleLoad)
    TAKE(cuModuleGetFunction)
    TAKE(cuLaunchKernel)
    TAKE(cuCtxSynchronize)
    TAKE(cuEventCreate)
    TAKE(cuEventRecord)
    TAKE(cuEventElapsedTime)
}

static void load(const char *name) {
    int device;
    void *context, *module;

    must(cuInit(0), "cuInit");
    must(cuDeviceGet(&device, 0), "cuDeviceGet");
    must(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    must(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    if (cuModuleLoad(&module, beside("kernels.sm_90.cubin")) != 0)
        must(cuModuleLoad(&module, beside("kernels.ptx")), "cuModuleLoad");
    must(cuModuleGetFunction(&kernel, module, name), "cuModuleGetFunction");
    must(cuEventCreate(&begun, 0), "cuEventCreate");
    must(cuEventCreate(&ended, 0), "cuEventCreate");
}

static void launch_one(void) {
    unsigned long long ns = BUSY_NS;
    void *arguments[] = {&ns};
    must(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, arguments, NULL), "cuLaunchKernel");
}

static void launch(long number) {
    for (long i = 0; i < number; i++)
        launch_one();
    must(cuCtxSynchronize(), "cuCtxSynchronize");
}

static double timed_ns(long number) {
    double ns = 0;
    for (long i = 0; i < number; i++) {
        float ms = 0;
        must(cuEventRecord(begun, NULL), "cuEventRecord");
        launch_one();
        must(cuEventRecord(ended, NULL), "cuEventRecord");
        must(cuCtxSynchronize(), "cuCtxSynchronize");
        must(cuEventElapsedTime(&ms, begun, ended), "cuEventElapsedTime");
        ns += 1e6 * (double)ms;
    }
    return ns;
}

int main(int count, char **words) {
    int empty = count == 2 && strcmp(words[1], "launches") == 0;
    if (!empty && (count != 2 || strcmp(words[1], "cubin") != 0)) {
        puts("expected one word: launches or cubin");
        return 2;
    }
    struct loop loop = {empty ? "pointillist_empty" : "pointillist_busy", launch, timed_ns};
    open_driver();
    load(loop.kernel);
    return serve(&loop);
}
