/* Where a workload's steps are marked: two functions for a named uprobe.
 * A nop is the first instruction because a probe on it is emulated, not single-stepped. */

int pointillist_step(void);
int pointillist_request(int (*serve)(void));

static int steps;

/* Called once a step: a step is the time between two calls. */
__attribute__((noinline)) int pointillist_step(void)
{
	__asm__ volatile("nop");
	return ++steps;
}

/* A request is the duration of the call. */
__attribute__((noinline)) int pointillist_request(int (*serve)(void))
{
	int answer;

	__asm__ volatile("nop");
	answer = serve();
	__asm__ volatile("" ::: "memory"); /* no tail call: the return is probed as well */
	return answer;
}
