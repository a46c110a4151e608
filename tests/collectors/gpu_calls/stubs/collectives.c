/* Calls the real NCCL without a communicator, which it refuses. */
#include <stdio.h>
#include <nccl.h>

int main(void)
{
	char buffer[64];
	int codes = 0;

#define TIMES(number, call)                 \
	for (int i = 0; i < (number); i++) \
		codes += (call) == ncclInvalidArgument
	TIMES(1, ncclAllReduce(buffer, buffer, 16, ncclFloat32, ncclSum, 0, 0));
	TIMES(2, ncclReduceScatter(buffer, buffer, 16, ncclFloat16, ncclSum, 0, 0));
	TIMES(3, ncclAllGather(buffer, buffer, 16, ncclInt8, 0, 0));
	TIMES(4, ncclBroadcast(buffer, buffer, 16, ncclFloat64, 0, 0, 0));
	TIMES(5, ncclBcast(buffer, 16, ncclFloat32, 0, 0, 0));
	TIMES(6, ncclReduce(buffer, buffer, 16, ncclFloat32, ncclSum, 0, 0, 0));
	TIMES(7, ncclSend(buffer, 16, ncclFloat32, 0, 0, 0));
	TIMES(8, ncclRecv(buffer, 16, ncclFloat32, 0, 0, 0));
	printf("%d\n", codes);
	return 0;
}
