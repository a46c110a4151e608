/* Calls the real driver's library through the pointers that Triton, JAX and CUDA runtimes hold: by dlsym, and by
 * cuGetProcAddress for either default stream. Every call fails, as there is no device; prints what each answered. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include "stub.h"

typedef int ask(const char *, void **, int, uint64_t, int *);
typedef int launch(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
		   void *, void **, void **);
struct config {
	unsigned grid[3], block[3], shared;
	void *stream, *attributes;
	unsigned count;
};
typedef int launch_ex(const struct config *, void *, void **, void **);
typedef int copy(void *, void *, unsigned long, void *);
typedef int launch_graph(void *, void *);
enum { LEGACY = 1, PER_THREAD = 2, RELEASE = 12000 };

static void *driver;
static ask *address;

static void *given(const char *name, uint64_t stream)
{
	void *found = 0;
	int state;
	if (address(name, &found, RELEASE, stream, &state) != 0)
		found = 0;
	return found;
}

static void calls(launch *run, launch_ex *run_ex, copy *move, launch_graph *replay)
{
	struct config config = {{2, 3, 1}, {64, 1, 1}, 48};

	for (int i = 0; i < 2; i++)
		printf("%d ", run((void *)&driver, 2, 3, 1, 64, 1, 1, 48, 0, 0, 0));
	for (int i = 0; i < 3; i++)
		printf("%d ", run_ex(&config, (void *)&driver, 0, 0));
	for (int i = 0; i < 4; i++)
		printf("%d ", move(&config, &config, 8, 0));
	for (int i = 0; i < 5; i++)
		printf("%d ", replay((void *)&driver, 0));
}

int main(int count, char **words)
{
	driver = dlopen(words[1], RTLD_NOW);
	address = (ask *)dlsym(driver, "cuGetProcAddress_v2");
	calls((launch *)dlsym(driver, "cuLaunchKernel"), (launch_ex *)dlsym(driver, "cuLaunchKernelEx"),
	      (copy *)dlsym(driver, "cuMemcpyAsync"), (launch_graph *)dlsym(driver, "cuGraphLaunch"));
	for (uint64_t stream = LEGACY; stream <= PER_THREAD; stream++)
		calls((launch *)given("cuLaunchKernel", stream), (launch_ex *)given("cuLaunchKernelEx", stream),
		      (copy *)given("cuMemcpyAsync", stream), (launch_graph *)given("cuGraphLaunch", stream));
	puts("");
	return 0;
}
