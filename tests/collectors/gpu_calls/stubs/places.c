/* The decoder, compiled for this machine with registers and a stack that we lay out ourselves. */
#include <stdio.h>
#include <string.h>
#include <stdbool.h>
#include <linux/types.h>
#undef __always_inline
#define __always_inline inline
#include "include/gpu.h"
#define READ_USER(to, bytes, from) memcpy(to, (const void *)(from), bytes)
#include "include/arguments.h"

static __u64 stack[16];
static struct row_spec spec;
static struct registers regs;
static struct call call;

static void at(enum meaning meaning, int slot, int behind, int offset)
{
	spec.places[meaning] = (struct place){slot + 1, behind, offset};
}

/* Integer slots 0, 1, ... hold 100, 101, ... in registers and then on the stack. */
static void enter(void)
{
	int first = 0;

	memset(&spec, 0, sizeof(spec));
#if defined(ARGUMENTS_X86_64)
	regs.rdi = 100, regs.rsi = 101, regs.rdx = 102, regs.rcx = 103, regs.r8 = 104, regs.r9 = 105;
	regs.rsp = (__u64)stack;
	stack[0] = 0xcafe; /* the return address */
	first = 1;
	for (int i = 0; i < 8; i++)
		stack[first + i] = 106 + i;
#else
	for (int i = 0; i < 8; i++)
		regs.x[i] = 100 + i, stack[i] = 108 + i;
	regs.sp = (__u64)stack;
	regs.x[30] = 0xcafe;
#endif
	read_call(&call, &regs);
}

static void set(int slot, __u64 value)
{
#if defined(ARGUMENTS_X86_64)
	__u64 *places[] = {&regs.rdi, &regs.rsi, &regs.rdx, &regs.rcx, &regs.r8, &regs.r9};
	*(slot < 6 ? places[slot] : &stack[slot - 5]) = value;
#else
	*(slot < 8 ? &regs.x[slot] : &stack[slot - 8]) = value;
#endif
	read_call(&call, &regs);
}

int main(void)
{
	struct {__u64 pad[3]; __u32 grid[3]; __u64 wide;} memory = {{7, 8, 9}, {2, 3, 4}, 1ull << 40};

	enter();
	for (int slot = 0; slot < 12; slot++) {
		at(MEANING_SIZE, slot, 0, 0);
		printf("%llu ", argument(&call, &spec, MEANING_SIZE));
	}
	/* A dim3 by value in two slots; the upper half of the second is nobody's. */
	enter();
	set(1, 3ull << 32 | 2), set(2, 0xdead00000005);
	at(MEANING_GRID, 1, 0, 0);
	printf("%llu ", extent(&call, &spec, MEANING_GRID, MEANING_GRID_X));
	/* Three slots of 32 bits, the last of them on x86-64's stack. */
	enter();
	set(4, 0xdead00000002), set(5, 3), set(6, 0xdead00000004);
	at(MEANING_BLOCK_X, 4, 0, 0);
	printf("%llu ", extent(&call, &spec, MEANING_BLOCK, MEANING_BLOCK_X));
	/* Behind a pointer. */
	enter();
	set(0, (__u64)&memory);
	at(MEANING_GRID, 0, 1, 24), at(MEANING_SIZE, 0, 1, 40), at(MEANING_SIZE_Y, 0, 1, 8);
	printf("%llu ", extent(&call, &spec, MEANING_GRID, MEANING_GRID_X));
	printf("%llu ", bytes_of(&call, &spec));
	/* Elements of a type; one that is not known has no bytes. */
	enter();
	spec.type_sizes = 3, memcpy(spec.element_sizes, (__u8[]){1, 2, 8}, 3);
	at(MEANING_SIZE, 3, 0, 0), at(MEANING_DATATYPE, 4, 0, 0);
	for (int type = 0; type < 4; type++) {
		set(4, 0xdead00000000 | type);
		printf("%llu ", bytes_of(&call, &spec));
	}
	for (int i = 0; i < 64; i++)
		if (size_bin(1ull << i) != (i < SIZE_BINS ? i : SIZE_BINS - 1) ||
		    (i && size_bin((1ull << i) - 1) != (i - 1 < SIZE_BINS ? i - 1 : SIZE_BINS - 1)))
			printf("bin %d ", i);
	printf("%u %llx", size_bin(0), call.caller ? call.caller : stack[0]);
	return 0;
}
