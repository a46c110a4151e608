/* A libnccl, and compiled again a librccl, of our own: each collective under both of its names. */
#include "stub.h"

#define TWICE(result, name, parameters) \
	result p##name parameters __attribute__((alias(#name)))

int ncclAllReduce(const void *from, void *to, unsigned long count, int type, int op, void *communicator,
		  void *stream)
{
	USE(from, to, count, type, op, communicator, stream);
	pause_us(50);
	return 0;
}
TWICE(int, ncclAllReduce, (const void *, void *, unsigned long, int, int, void *, void *));

int ncclReduce(const void *from, void *to, unsigned long count, int type, int op, int root,
	       void *communicator, void *stream)
{
	USE(from, to, count, type, op, root, communicator, stream);
	return 0;
}
TWICE(int, ncclReduce, (const void *, void *, unsigned long, int, int, int, void *, void *));

int ncclBroadcast(const void *from, void *to, unsigned long count, int type, int root,
		  void *communicator, void *stream)
{
	USE(from, to, count, type, root, communicator, stream);
	return 0;
}

int ncclBcast(void *buffer, unsigned long count, int type, int root, void *communicator, void *stream)
{
	return ncclBroadcast(buffer, buffer, count, type, root, communicator, stream);
}

int ncclSend(const void *from, unsigned long count, int type, int peer, void *communicator, void *stream)
{
	USE(from, count, type, peer, communicator, stream);
	return 0;
}
