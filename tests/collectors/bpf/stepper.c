/* Makes a known number of steps of a known length, in one or two threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long steps, step_ns;

__attribute__((noinline)) int pointillist_step(void)
{
	__asm__ volatile("");
	return 0;
}

__attribute__((noinline)) int pointillist_work(void)
{
	struct timespec span = {step_ns / 1000000000, step_ns % 1000000000};

	return step_ns ? nanosleep(&span, 0) : 0;
}

static void *loop(void *unused)
{
	for (long i = 0; i < steps; i++) {
		pointillist_work();
		pointillist_step();
	}
	return unused;
}

/* stepper STEPS NANOSECONDS THREADS: `ready`, waits for a line, works, `done`, waits again. */
int main(int count, char **arguments)
{
	pthread_t second;

	if (count != 4)
		return 2;
	steps = atol(arguments[1]);
	step_ns = atol(arguments[2]);
	puts("ready");
	fflush(stdout);
	getchar();
	if (atoi(arguments[3]) > 1)
		pthread_create(&second, 0, loop, 0);
	loop(0);
	if (atoi(arguments[3]) > 1)
		pthread_join(second, 0);
	puts("done");
	fflush(stdout);
	getchar();
	return 0;
}
