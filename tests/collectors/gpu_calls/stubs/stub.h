/* Types of the stubs and of the programs that call them. */
#include <time.h>

struct dim3 {
	unsigned x, y, z;
};

struct launch_config {
	struct dim3 grid, block;
	unsigned long shared;
	void *stream;
	void *attributes;
	unsigned count;
};

struct pitched {
	void *pointer;
	unsigned long pitch, width, height;
};

struct extent {
	unsigned long width, height, depth;
};

struct copy_3d {
	void *from_array;
	struct extent from_at;
	struct pitched from;
	void *to_array;
	struct extent to_at;
	struct pitched to;
	struct extent extent;
	int kind;
};

#define FOREVER ((void *)0xf0)
/* Arguments are read where they stand; the compiler must not drop a call that does nothing. */
#define USE(...) use(0, __VA_ARGS__)
#define EXPORT __attribute__((noinline))

static inline void use(int nothing, ...)
{
	__asm__ volatile("" : : "r"(nothing) : "memory");
}

static inline void pause_us(long us)
{
	struct timespec time = {us / 1000000, us % 1000000 * 1000};

	nanosleep(&time, 0);
}
