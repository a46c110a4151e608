// Launches kernels as programs that NVIDIA's compiler made do; without a device every call fails.
#include <cstdio>
#include <cstdlib>

template <class T> __global__ void scale(T *values, T factor)
{
	values[threadIdx.x] *= factor;
}

static __global__ void tick()
{
}

int main()
{
	float *values = nullptr;

	if (getenv("WAIT"))
		getchar();
	cudaMalloc(&values, 4096);
	for (int i = 0; i < 7; i++)
		tick<<<2, 64>>>();
	for (int i = 0; i < 5; i++)
		scale<float><<<dim3(2, 3), 64, 48>>>(values, 2.0f);
	puts("done");
	fflush(stdout);
	if (getenv("STAY"))
		getchar();
	return 0;
}
