/* A static probe as CPython's, whose counter tells whether anybody looks, and a function as torch's. */
extern "C" {
unsigned short python_function_entry_semaphore __attribute__((section(".probes")));
}

namespace at {
namespace detail {
__attribute__((noinline)) long empty_generic(int device, long bytes)
{
	__asm__ volatile("" : : "r"(device), "r"(bytes) : "memory");
	return bytes;
}
} // namespace detail
} // namespace at

static void python_call()
{
	if (!python_function_entry_semaphore)
		return;
	/* .note.stapsdt, as <sys/sdt.h> writes it. */
	__asm__ volatile("990: nop\n"
			 ".pushsection .note.stapsdt,\"\",\"note\"\n"
			 ".balign 4\n"
			 ".4byte 992f-991f, 994f-993f, 3\n"
			 "991: .asciz \"stapsdt\"\n"
			 "992: .balign 4\n"
			 "993: .8byte 990b\n"
			 ".8byte _.stapsdt.base\n"
			 ".8byte python_function_entry_semaphore\n"
			 ".asciz \"python\"\n"
			 ".asciz \"function__entry\"\n"
			 ".asciz \"\"\n"
			 "994: .balign 4\n"
			 ".popsection\n"
			 ".ifndef _.stapsdt.base\n"
			 ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
			 ".weak _.stapsdt.base\n"
			 ".hidden _.stapsdt.base\n"
			 "_.stapsdt.base: .space 1\n"
			 ".size _.stapsdt.base, 1\n"
			 ".popsection\n"
			 ".endif\n");
}

int main()
{
	for (int i = 0; i < 47; i++)
		python_call();
	for (int i = 0; i < 53; i++)
		at::detail::empty_generic(1, 640);
	return 0;
}
