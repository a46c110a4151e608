/* A GPU program on NVIDIA's driver library, whose path is its argument: as the driver does, it loads what
 * CUDA_INJECTION64_PATH names before it goes on. Without a device every call fails; it prints what each answered. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **words) {
    void *driver = dlopen(words[1], RTLD_NOW);
    int (*init)(unsigned), (*alloc)(unsigned long *, unsigned long), (*wait)(void);
    unsigned long at;

    if (count != 2 || driver == NULL)
        return 1;
    *(void **)&init = dlsym(driver, "cuInit");
    *(void **)&alloc = dlsym(driver, "cuMemAlloc_v2");
    *(void **)&wait = dlsym(driver, "cuCtxSynchronize");
    if (getenv("CUDA_INJECTION64_PATH") != NULL) {
        void *library = dlopen(getenv("CUDA_INJECTION64_PATH"), RTLD_NOW);
        int (*begin)(void);
        *(void **)&begin = library ? dlsym(library, "InitializeInjection") : NULL;
        if (begin == NULL || begin() != 1)
            return 2;
    }
    printf("init %d\n", init(0));
    fflush(stdout);
    while (getchar() == '\n') {
        int allocated = alloc(&at, 4096);
        printf("alloc %d wait %d\n", allocated, wait());
        fflush(stdout);
    }
    return 7;
}
