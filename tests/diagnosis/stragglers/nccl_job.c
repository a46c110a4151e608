/* A libnccl, a libcudart and a rank that calls them, all of our own: compiled by which is defined.
 *
 * As NCCL does, a collective returns at once; the wait for the stream ends when the own GPU's work
 * is done and all ranks' GPUs have come to the collective. A mapped file tells of both. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MOST 8

struct job {
	_Atomic long made[MOST];	/* collectives by rank */
	_Atomic long host_us[MOST];	/* what a step costs the host */
	_Atomic long gpu_us[MOST];	/* and the GPU */
	_Atomic long arrived[MOST];	/* collectives that the rank's GPU has come to */
	_Atomic int over;
};

static struct job *job(void)
{
	static struct job *mapped;

	if (!mapped)
		mapped = mmap(0, sizeof(*mapped), PROT_READ | PROT_WRITE, MAP_SHARED,
			      open(getenv("STUB_JOB"), O_RDWR), 0);
	return mapped;
}

static int number(const char *name) { return atoi(getenv(name)); }

static void pause_us(long us)
{
	struct timespec time = {us / 1000000, us % 1000000 * 1000};

	nanosleep(&time, 0);
}

#if defined NCCL

int ncclAllReduce(const void *from, void *to, unsigned long count, int type, int op, void *communicator,
		  void *stream)
{
	atomic_fetch_add(&job()->made[number("RANK")], 1);
	return 0;
}
int pncclAllReduce(const void *, void *, unsigned long, int, int, void *, void *)
	__attribute__((alias("ncclAllReduce")));

#elif defined CUDART

int cudaStreamSynchronize(void *stream)
{
	int rank = number("RANK"), other, ranks = number("RANKS");

	if (stream) /* another one: of copies, which are done */
		return 0;
	pause_us(job()->gpu_us[rank]);
	job()->arrived[rank] = job()->made[rank];
	for (other = 0; other < ranks; other++)
		while (job()->arrived[other] < job()->made[rank] && !job()->over)
			pause_us(200);
	return 0;
}

#else

int ncclAllReduce(const void *, void *, unsigned long, int, int, void *, void *);
int cudaStreamSynchronize(void *);

int main(void)
{
	int rank = number("RANK"), bucket;

	puts("ready");
	fflush(stdout);
	while (!job()->over) {
		pause_us(job()->host_us[rank]);
		cudaStreamSynchronize((void *)1);
		for (bucket = 0; bucket < 3; bucket++)
			ncclAllReduce(0, 0, 1000, 7, 0, (void *)0x70, 0);
		cudaStreamSynchronize((void *)1);
		cudaStreamSynchronize(0);
	}
	return 0;
}

#endif
