/* Launches busy kernels through the CUDA runtime, which is linked statically: `runtime runtime` one by one, `runtime replay`
 * as a graph of NODES of them. */
#include "loop.h"

#include <cuda_runtime_api.h>

enum { NODES = 20 };

static cudaKernel_t kernel;
static cudaStream_t stream;
static cudaEvent_t begun, ended;
static cudaGraphExec_t graph;

static void must(cudaError_t code, const char *what) {
    if (code == cudaSuccess)
        return;
    printf("%s: %s (%d)\n", what, cudaGetErrorString(code), code);
    exit(1);
}

static void launch_kernel(void) {
    unsigned long long ns = BUSY_NS;
    void *arguments[] = {&ns};
    struct dim3 grid = {1, 1, 1}, block = {32, 1, 1};
    must(cudaLaunchKernel((const void *)kernel, grid, block, arguments, 0, stream), "cudaLaunchKernel");
}

static void launch_one(void) {
    if (graph != NULL)
        must(cudaGraphLaunch(graph, stream), "cudaGraphLaunch");
    else
        launch_kernel();
}

static void launch(long number) {
    for (long i = 0; i < number; i++)
        launch_one();
    must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

static double timed_ns(long number) {
    double ns = 0;
    for (long i = 0; i < number; i++) {
        float ms = 0;
        must(cudaEventRecord(begun, stream), "cudaEventRecord");
        launch_one();
        must(cudaEventRecord(ended, stream), "cudaEventRecord");
        must(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        must(cudaEventElapsedTime(&ms, begun, ended), "cudaEventElapsedTime");
        ns += 1e6 * (double)ms;
    }
    return ns;
}

static void load(void) {
    cudaLibrary_t library;

    must(cudaSetDevice(0), "cudaSetDevice");
    if (cudaLibraryLoadFromFile(&library, beside("kernels.sm_90.cubin"), NULL, NULL, 0, NULL, NULL, 0) != cudaSuccess)
        must(cudaLibraryLoadFromFile(&library, beside("kernels.ptx"), NULL, NULL, 0, NULL, NULL, 0), "cudaLibraryLoadFromFile");
    must(cudaLibraryGetKernel(&kernel, library, "pointillist_busy"), "cudaLibraryGetKernel");
    must(cudaStreamCreate(&stream), "cudaStreamCreate");
    must(cudaEventCreate(&begun), "cudaEventCreate");
    must(cudaEventCreate(&ended), "cudaEventCreate");
}

static void capture(void) {
    cudaGraph_t captured;

    must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    for (int i = 0; i < NODES; i++)
        launch_kernel();
    must(cudaStreamEndCapture(stream, &captured), "cudaStreamEndCapture");
    must(cudaGraphInstantiate(&graph, captured, 0), "cudaGraphInstantiate");
}

int main(int count, char **words) {
    int replay = count == 2 && strcmp(words[1], "replay") == 0;
    if (!replay && (count != 2 || strcmp(words[1], "runtime") != 0)) {
        puts("expected one word: runtime or replay");
        return 2;
    }
    struct loop loop = {replay ? "(graph)" : "pointillist_busy", launch, timed_ns};
    load();
    if (replay)
        capture();
    return serve(&loop);
}
