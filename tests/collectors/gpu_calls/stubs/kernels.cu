// Launches kernels as programs that NVIDIA's compiler made do; without a device every call fails.
#include <cstdio>
#include <cstdlib>

template <class T> __global__ void scale(T *values, T factor)
{
	values[threadIdx.x] *= factor;
}

template <class F> __global__ void apply(F f, float *values)
{
	values[threadIdx.x] = f(values[threadIdx.x]);
}

static __global__ void tick()
{
}

void launch(float *values)
{
	for (int i = 0; i < 7; i++)
		tick<<<2, 64>>>();
	for (int i = 0; i < 5; i++)
		scale<float><<<dim3(2, 3), 64, 48>>>(values, 2.0f);
	auto more = [=] __host__ __device__(float x) { return x + 1; };
	for (int i = 0; i < 3; i++)
		apply<<<1, 32>>>(more, values);
}

int main()
{
	float *values = nullptr;

	if (getenv("EARLY"))
		launch(values);
	if (getenv("WAIT"))
		getchar();
	cudaMalloc(&values, 4096);
	launch(values);
	puts("done");
	fflush(stdout);
	if (getenv("STAY"))
		getchar();
	return 0;
}
