/* Host metrics: tp_btf programs and a BPF timer. README.md says what each costs and needs. */
#include "sched.h"
#include "interrupts.h"
#include "block.h"
#include "network.h"
#include "memory.h"
#include "ticks.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";
