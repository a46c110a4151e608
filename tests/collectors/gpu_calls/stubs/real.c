/* Calls the real CUDA runtime, as far as it goes without a device: every call fails. */
#include "stub.h"

int cudaLaunchKernel(const void *, struct dim3, struct dim3, void **, unsigned long, void *);
int __cudaLaunchKernel(const void *, struct dim3, struct dim3, void **, unsigned long, void *);
int cudaMalloc(void **, unsigned long);
int cudaMemcpy(void *, const void *, unsigned long, int);
int cudaDeviceSynchronize(void);

int main(void)
{
	struct dim3 grid = {2, 3, 1}, block = {64, 1, 1};
	void *pointer;

	for (int i = 0; i < 4; i++)
		cudaLaunchKernel((void *)main, grid, block, 0, 48, 0);
	/* What compilers of CUDA 12 and later call; it jumps to the one above. */
	for (int i = 0; i < 3; i++)
		__cudaLaunchKernel((void *)main, grid, block, 0, 48, 0);
	for (int i = 0; i < 5; i++)
		cudaMalloc(&pointer, 4096);
	for (int i = 0; i < 3; i++)
		cudaMemcpy(&pointer, &pointer, 8, 0);
	for (int i = 0; i < 2; i++)
		cudaDeviceSynchronize();
	return 0;
}
