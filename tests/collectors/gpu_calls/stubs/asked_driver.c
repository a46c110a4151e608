/* A libcuda.so.1 that hands on what a CUDA runtime asks of the real one, and writes down each pointer that it was given:
 * name, version, flags and where it lies in the real library. The version it states is large, or the runtime asks for nothing. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *real(const char *name)
{
	static void *library;
	if (!library)
		library = dlopen(getenv("REAL_DRIVER"), RTLD_NOW | RTLD_LOCAL);
	return library ? dlsym(library, name) : NULL;
}

int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *state)
{
	static FILE *log;
	Dl_info where;
	int (*ask)(const char *, void **, int, uint64_t, int *) = real(__func__);
	int code = ask(name, found, version, flags, state);

	if (!log)
		log = fopen(getenv("ASKED_LOG"), "w");
	if (code == 0 && version >= 12000 && !strcmp(name, "cuGetProcAddress"))
		*found = cuGetProcAddress_v2; /* or it would ask behind this one's back */
	else if (code == 0 && *found && dladdr(*found, &where))
		fprintf(log, "%s %d %lu %lu\n", name, version, (unsigned long)flags,
			(unsigned long)((char *)*found - (char *)where.dli_fbase));
	fflush(log);
	return code;
}

int cuDriverGetVersion(int *version)
{
	*version = 99000;
	return 0;
}

int cuInit(unsigned flags)
{
	return ((int (*)(unsigned))real(__func__))(flags);
}

int cuGetExportTable(const void **table, const void *id)
{
	return ((int (*)(const void **, const void *))real(__func__))(table, id);
}
