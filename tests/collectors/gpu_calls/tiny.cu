template <class T> __global__ void scale(T *values, T by)
{
	values[threadIdx.x] *= by;
}

__device__ int counter;

__global__ void count()
{
	atomicAdd(&counter, 1);
}

extern "C" void work(float *floats, double *doubles)
{
	scale<<<1, 32>>>(floats, 2.0f);
	scale<<<1, 32>>>(doubles, 2.0);
	count<<<1, 1>>>();
}

int main()
{
	work(nullptr, nullptr);
	return 0;
}
