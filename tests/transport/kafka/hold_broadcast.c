/* Loaded before librdkafka: its main thread rests wherever it tells of a change of state, the end of
 * the group above all, for `hold_us`: a moment that a busy machine makes long once in many runs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

volatile unsigned hold_us;

int cnd_broadcast(void *condition)
{
	int (*next)(void *) = dlsym(RTLD_NEXT, "cnd_broadcast");
	char name[16] = "";

	pthread_getname_np(pthread_self(), name, sizeof name);
	if (hold_us && !strcmp(name, "rdk:main"))
		usleep(hold_us);
	return next(condition);
}
