/* Integer arguments of the call that a uprobe has just entered, on x86-64 and arm64 alike.
 *
 * Slots are numbered from 0 as the calling conventions fill them. A struct of up to 16 bytes by value
 * (dim3) takes two slots of both. READ_USER(to, bytes, from) copies a process's memory. */
#ifndef POINTILLIST_ARGUMENTS_H
#define POINTILLIST_ARGUMENTS_H

/* What programs know of a call: read from the registers once, because the verifier wants each load of
 * a register at a constant offset, while the slot of an argument is data. */
struct call {
	__u64 slots[8]; /* a power of two: the index is masked */
	__u64 stack;    /* the stack pointer: at a return that of the caller */
	__u64 code;     /* the instruction's address */
	__u64 caller;   /* arm64: the return address */
	__u64 result;
};

#if defined(ARGUMENTS_X86_64)
struct registers {
	__u64 r15, r14, r13, r12, rbp, rbx, r11, r10, r9, r8, rax, rcx, rdx, rsi, rdi;
	__u64 orig_rax, rip, cs, eflags, rsp, ss;
};
#define REGISTER_SLOTS 6
#define STACK_AT_RETURN(entry_stack) ((entry_stack) + 8) /* `ret` took the return address */
#define FIRST_STACK_SLOT 8                               /* above the return address */
#elif defined(ARGUMENTS_ARM64)
struct registers {
	__u64 x[31];
	__u64 sp, pc, pstate;
};
#define REGISTER_SLOTS 8
#define STACK_AT_RETURN(entry_stack) (entry_stack)
#define FIRST_STACK_SLOT 0
#else
#error "expected ARGUMENTS_X86_64 or ARGUMENTS_ARM64"
#endif

static __always_inline void read_call(struct call *call, const volatile struct registers *regs)
{
#if defined(ARGUMENTS_X86_64)
	call->slots[0] = regs->rdi;
	call->slots[1] = regs->rsi;
	call->slots[2] = regs->rdx;
	call->slots[3] = regs->rcx;
	call->slots[4] = regs->r8;
	call->slots[5] = regs->r9;
	call->stack = regs->rsp;
	call->code = regs->rip;
	call->caller = 0;
	call->result = regs->rax;
#else
	call->slots[0] = regs->x[0];
	call->slots[1] = regs->x[1];
	call->slots[2] = regs->x[2];
	call->slots[3] = regs->x[3];
	call->slots[4] = regs->x[4];
	call->slots[5] = regs->x[5];
	call->slots[6] = regs->x[6];
	call->slots[7] = regs->x[7];
	call->stack = regs->sp;
	call->code = regs->pc;
	call->caller = regs->x[30];
	call->result = regs->x[0];
#endif
}

static __always_inline __u64 slot_of(const struct call *call, __u32 slot)
{
	__u64 value = 0;

	if (slot < REGISTER_SLOTS)
		return call->slots[slot & 7];
	READ_USER(&value, sizeof(value),
		  call->stack + FIRST_STACK_SLOT + 8 * (__u64)(slot - REGISTER_SLOTS));
	return value;
}

static __always_inline bool has(const struct row_spec *row, enum meaning meaning)
{
	return row->places[meaning].slot;
}

/* Give an argument, 0 where the row has none. */
static __always_inline __u64 argument(const struct call *call, const struct row_spec *row,
				      enum meaning meaning)
{
	struct place place = row->places[meaning];
	__u64 value;

	if (!place.slot)
		return 0;
	value = slot_of(call, place.slot - 1);
	if (place.behind) {
		__u64 address = value + place.offset;

		value = 0;
		READ_USER(&value, sizeof(value), address);
	}
	return value;
}

/* Give x * y * z of a grid or block: three 32-bit slots, a packed dim3 in two, or one in memory. */
static __always_inline __u64 extent(const struct call *call, const struct row_spec *row,
				    enum meaning packed, enum meaning separate)
{
	struct place place = row->places[packed];
	__u32 size[3] = {0, 0, 0};
	__u64 pair, slot;

	if (place.behind) {
		READ_USER(size, sizeof(size), slot_of(call, place.slot - 1) + place.offset);
	} else if (place.slot) {
		pair = slot_of(call, place.slot - 1);
		size[0] = pair;
		size[1] = pair >> 32;
		size[2] = slot_of(call, place.slot);
	} else if (row->places[separate].slot) {
		slot = row->places[separate].slot;
		size[0] = slot_of(call, slot - 1);
		size[1] = slot_of(call, slot);
		size[2] = slot_of(call, slot + 1);
	}
	return (__u64)size[0] * size[1] * size[2];
}

/* Give the bytes of a call: size, times lines and layers, times an element's size. */
static __always_inline __u64 bytes_of(const struct call *call, const struct row_spec *row)
{
	__u64 bytes = argument(call, row, MEANING_SIZE);
	__u64 type = 0; /* of 32 bits, in one register: the verifier forgets the bound of a copy */

	if (has(row, MEANING_SIZE_Y))
		bytes *= argument(call, row, MEANING_SIZE_Y);
	if (has(row, MEANING_SIZE_Z))
		bytes *= argument(call, row, MEANING_SIZE_Z);
	if (!row->type_sizes)
		return bytes;
	if (has(row, MEANING_DATATYPE))
		type = (__u32)argument(call, row, MEANING_DATATYPE);
	if (type >= row->type_sizes || type >= ELEMENT_SIZES)
		return 0;
	return bytes * row->element_sizes[type];
}

static __always_inline __u32 direction_of(const struct call *call, const struct row_spec *row)
{
	__u32 direction = row->direction;

	if (has(row, MEANING_DIRECTION))
		direction = argument(call, row, MEANING_DIRECTION);
	return direction <= 4 ? direction : 4;
}

/* Give the log2 of a size, by halves: programs have no instruction for it. */
static __always_inline __u32 size_bin(__u64 bytes)
{
	__u32 bin = 0;

#pragma unroll
	for (int half = 32; half; half >>= 1) {
		if (bytes >> half) {
			bytes >>= half;
			bin += half;
		}
	}
	return bin < SIZE_BINS ? bin : SIZE_BINS - 1;
}

#endif
