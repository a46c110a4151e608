// What the programs of the GPU kit launch: nothing, and nanoseconds by the device's own clock.

extern "C" __global__ void pointillist_empty()
{
}

extern "C" __global__ void pointillist_busy(unsigned long long ns)
{
	unsigned long long begun, now;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
	do
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	while (now - begun < ns);
}
