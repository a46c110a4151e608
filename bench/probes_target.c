/* The probed process: calls launch functions of many copies of one library, as lines of stdin say.
 *
 *   target LIBRARY...
 *   call LIBRARY THREADS CALLS      prints nanoseconds of CPU time per call, of all threads
 *   flat LIBRARY THREADS SECONDS    calls as often as it can; prints calls
 *   pace LIBRARY LIBRARY RATE SECONDS ON_MS OFF_MS
 *       launches RATE times a second through the first library, and as often through the second, in
 *       slices that take turns, and prints one line for each pair of slices:
 *       begin_ns end_ns launches own_ns through the first, the same through the second; then a dot.
 *       Work is between launches, so that both together keep one thread busy for BUSY of the time; what
 *       is left keeps the rate steady where other work wants the CPU too. OFF_MS is slept after each
 *       ON_MS of work, 0: never. own_ns is wall time, waiting for a CPU apart. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LIBRARIES 64
#define THREADS 64
#define SLICE_NS 4000000ul
#define PAIRS (1 << 17)
#define BUSY 0.7
#define BEHIND_NS 100000000ul

struct dim3 {
	unsigned x, y, z;
};
typedef int launch_function(const void *, struct dim3, struct dim3, void **, unsigned long, void *);

struct slice {
	unsigned long begin_ns, end_ns, launches, own_ns;
};

static launch_function *functions[LIBRARIES];
static const struct dim3 GRID = {2, 3, 5}, BLOCK = {32, 4, 1};
static struct slice pairs[PAIRS][2];
static volatile int stopped;

static unsigned long clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000ul + now.tv_nsec;
}

static void launch(launch_function *function, unsigned long number)
{
	function((void *)(0x10000 + 256 * (number & 15)), GRID, BLOCK, 0, 1024, 0);
}

struct job {
	launch_function *function;
	unsigned long calls, cpu_ns;
};

static void *call(void *argument)
{
	struct job *job = argument;
	unsigned long begin_ns;

	launch(job->function, 0);
	begin_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	for (unsigned long i = 1; i < job->calls; i++)
		launch(job->function, i);
	job->cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns;
	return 0;
}

static void *flat_out(void *argument)
{
	struct job *job = argument;

	for (job->calls = 0; !stopped; job->calls++)
		launch(job->function, job->calls);
	return 0;
}

static void in_threads(void *(*what)(void *), struct job *jobs, int threads, double seconds)
{
	pthread_t ids[THREADS];

	stopped = 0;
	for (int i = 0; i < threads; i++)
		pthread_create(&ids[i], 0, what, &jobs[i]);
	if (seconds) {
		usleep(seconds * 1e6);
		stopped = 1;
	}
	for (int i = 0; i < threads; i++)
		pthread_join(ids[i], 0);
}

/* Nanoseconds for which this thread has waited for a CPU. */
static unsigned long waited_ns(int schedstat)
{
	char text[128];
	ssize_t length = pread(schedstat, text, sizeof(text) - 1, 0);
	char *word;

	if (length <= 0)
		return 0;
	text[length] = 0;
	word = strchr(text, ' ');
	return word ? strtoul(word, 0, 10) : 0;
}

/* Never inlined: a copy of its own would run at another speed. */
static __attribute__((noinline)) void work(unsigned long steps)
{
	for (unsigned long i = 0; i < steps; i++)
		__asm__ volatile("" : "+r"(i));
}

static double steps_per_ns(void)
{
	double best = 0;

	for (int i = 0; i < 20; i++) {
		unsigned long begin_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID), took_ns;

		work(2000000);
		took_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin_ns;
		if (2e6 / took_ns > best)
			best = 2e6 / took_ns;
	}
	return best;
}

/* Time and waiting at one instant: read again where the thread lost its CPU between the two. */
static unsigned long instant_ns(int schedstat, unsigned long *waited)
{
	unsigned long now_ns;

	do {
		*waited = waited_ns(schedstat);
		now_ns = clock_ns(CLOCK_BOOTTIME);
	} while (waited_ns(schedstat) != *waited);
	return now_ns;
}

static void run_slice(struct slice *slice, launch_function *function, unsigned long launches,
		      unsigned long steps, int schedstat)
{
	unsigned long before, after;

	slice->begin_ns = instant_ns(schedstat, &before);
	for (unsigned long i = 0; i < launches; i++) {
		work(steps);
		launch(function, i);
	}
	slice->end_ns = instant_ns(schedstat, &after);
	slice->launches = launches;
	slice->own_ns = slice->end_ns - slice->begin_ns - (after - before);
}

static void sleep_until(unsigned long due_ns)
{
	struct timespec due = {due_ns / 1000000000ul, due_ns % 1000000000ul};

	clock_nanosleep(CLOCK_BOOTTIME, TIMER_ABSTIME, &due, 0);
}

static void pace(int first, int second, double rate, double seconds, long on_ms, long off_ms)
{
	unsigned long launches, steps, end_ns, burst_ns, due_ns;
	char path[64];
	int schedstat, n = 0;

	if (off_ms) /* the rate is that of the whole time */
		rate = rate * (on_ms + off_ms) / on_ms;
	/* A pair takes two slices of time, and launches for both through the first library. */
	launches = 2 * SLICE_NS * rate / 1e9;
	if (!launches)
		launches = 1;
	steps = BUSY * SLICE_NS / launches * steps_per_ns();
	snprintf(path, sizeof(path), "/proc/self/task/%ld/schedstat", syscall(SYS_gettid));
	schedstat = open(path, O_RDONLY);
	due_ns = clock_ns(CLOCK_BOOTTIME);
	end_ns = due_ns + seconds * 1e9;
	burst_ns = due_ns + on_ms * 1000000ul;
	for (; clock_ns(CLOCK_BOOTTIME) < end_ns && n < PAIRS; n++) {
		int turn = rand() & 1;

		run_slice(&pairs[n][turn], functions[turn ? second : first], launches, steps, schedstat);
		run_slice(&pairs[n][!turn], functions[turn ? first : second], launches, steps, schedstat);
		due_ns += 2e9 * launches / (2 * rate);
		if (off_ms && clock_ns(CLOCK_BOOTTIME) >= burst_ns) {
			usleep(off_ms * 1000);
			due_ns = clock_ns(CLOCK_BOOTTIME);
			burst_ns = due_ns + on_ms * 1000000ul;
		}
		sleep_until(due_ns);
		if (clock_ns(CLOCK_BOOTTIME) > due_ns + BEHIND_NS)
			due_ns = clock_ns(CLOCK_BOOTTIME); /* what is this late is not made up for */
	}
	close(schedstat);
	for (int i = 0; i < n; i++) {
		struct slice *a = &pairs[i][0], *b = &pairs[i][1];

		printf("%lu %lu %lu %lu %lu %lu %lu %lu\n", a->begin_ns, a->end_ns, a->launches, a->own_ns,
		       b->begin_ns, b->end_ns, b->launches, b->own_ns);
	}
	printf(".\n");
}

int main(int count, char **libraries)
{
	struct job jobs[THREADS];
	char line[256];
	int library, other, threads;
	unsigned long calls, total;
	double seconds, rate;
	long on_ms, off_ms;

	for (int i = 1; i < count && i <= LIBRARIES; i++) {
		void *handle = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);

		functions[i - 1] = handle ? dlsym(handle, "cudaLaunchKernel") : 0;
		if (!functions[i - 1])
			return fprintf(stderr, "expected cudaLaunchKernel in %s\n", libraries[i]), 1;
	}
	setlinebuf(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		total = 0;
		if (sscanf(line, "call %d %d %lu", &library, &threads, &calls) == 3) {
			for (int i = 0; i < threads; i++)
				jobs[i] = (struct job){functions[library], calls, 0};
			in_threads(call, jobs, threads, 0);
			for (int i = 0; i < threads; i++)
				total += jobs[i].cpu_ns;
			printf("%f\n", (double)total / threads / (calls - 1));
		} else if (sscanf(line, "flat %d %d %lf", &library, &threads, &seconds) == 3) {
			for (int i = 0; i < threads; i++)
				jobs[i] = (struct job){functions[library], 0, 0};
			in_threads(flat_out, jobs, threads, seconds);
			for (int i = 0; i < threads; i++)
				total += jobs[i].calls;
			printf("%lu\n", total);
		} else if (sscanf(line, "pace %d %d %lf %lf %ld %ld", &library, &other, &rate, &seconds,
				  &on_ms, &off_ms) == 6) {
			pace(library, other, rate, seconds, on_ms, off_ms);
		} else {
			return fprintf(stderr, "expected call, flat or pace, got %s", line), 1;
		}
		fflush(stdout);
	}
	return 0;
}
