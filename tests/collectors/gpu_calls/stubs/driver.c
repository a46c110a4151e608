/* Calls the real driver's library, as far as it goes without a device: every call fails. */
#include <dlfcn.h>
#include <stdio.h>
#include "stub.h"

typedef int launch(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
		   void *, void **, void **);
typedef int alloc(unsigned long *, unsigned long);

int main(int count, char **words)
{
	void *driver = dlopen(words[1], RTLD_NOW);
	int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
	launch *run = (launch *)dlsym(driver, "cuLaunchKernel");
	alloc *take = (alloc *)dlsym(driver, "cuMemAlloc_v2");
	unsigned long at;

	printf("%d", init(0));
	for (int i = 0; i < 7; i++)
		printf(" %d", run((void *)main, 2, 3, 1, 64, 1, 1, 48, 0, 0, 0));
	for (int i = 0; i < 5; i++)
		printf(" %d", take(&at, 4096));
	puts("");
	return 0;
}
