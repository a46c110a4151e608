/* Asks a driver's library for the pointers of the functions that its arguments name, of every release and stream. */
#include <dlfcn.h>
#include <stdint.h>

int main(int count, char **words)
{
	static const int releases[] = {2000, 3020, 4000, 6000, 7000, 8000, 9000, 9020, 10000, 11000,
				       11010, 11020, 11030, 11040, 11060, 11070, 11080, 12000, 12020};
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	int (*address)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
	void *found;
	int state;

	for (int word = 1; word < count; word++)
		for (int release = 0; release < sizeof releases / sizeof *releases; release++)
			for (uint64_t stream = 0; stream <= 2; stream++)
				address(words[word], &found, releases[release], stream, &state);
	return 0;
}
