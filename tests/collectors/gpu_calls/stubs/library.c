/* A library with versions of a function, an alias, marks, and a function that is resolved. */
#define MARK(name, semaphore) __asm__ volatile( \
    "990: nop\n" \
    ".pushsection .note.stapsdt,\"\",\"note\"\n .balign 4\n" \
    ".4byte 992f-991f, 994f-993f, 3\n" \
    "991: .asciz \"stapsdt\"\n 992: .balign 4\n" \
    "993: .8byte 990b, _.stapsdt.base, " semaphore "\n" \
    ".asciz \"torch\"\n .asciz \"" name "\"\n .asciz \"8@%%rdi\"\n 994: .balign 4\n" \
    ".popsection\n" \
    ".ifndef _.stapsdt.base\n" \
    ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
    ".weak _.stapsdt.base\n .hidden _.stapsdt.base\n" \
    "_.stapsdt.base: .space 1\n .size _.stapsdt.base, 1\n .popsection\n .endif" ::: "memory")
__attribute__((section(".probes"), visibility("hidden"))) unsigned short counted;
volatile int seen;
int cuMemAlloc(int a) { seen += a; return 0; }
int cuMemAlloc_v2(int a) { seen += a + 1; return 0; }
int cuMemAlloc_v2_ptds(int a) { seen += a + 2; return 0; }
int cuMemAllocHost(int a) { seen += a + 3; return 0; }
int cudaLaunchKernel(int a) { seen += a + 4; return 0; }
int cudaLaunchKernel_ptsz(int a) { seen += a + 5; return 0; }
int pncclAllReduce(int a) { seen += a + 6; return 0; }
int ncclAllReduce(int a) __attribute__((alias("pncclAllReduce")));
int marked(int a) { MARK("op", "0"); MARK("counted_op", "counted"); return a; }
static int resolved(int a) { return a; }
static int (*choose(void))(int) { return resolved; }
int cuIndirect(int) __attribute__((ifunc("choose")));
