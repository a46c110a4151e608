/* A loop that is steered by lines on stdin, as gpu_workload.py is:
 *
 *   steps N     launches N times and waits for them; prints the seconds that took
 *   bursts N    launches N times in bursts of 0.3 s every 1.8 s; prints how often it did
 *   profile N   launches N times between two events each; prints {name: [launches, ns]}
 *
 * A program says `ready` first. What fails is said in one line, and ends it. */
#define _GNU_SOURCE
#include <libgen.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BUSY_NS = 1000000 }; /* against which two events cost nothing */

struct loop {
    const char *kernel;       /* its name in the profile */
    void (*launch)(long);     /* so often, and waits */
    double (*timed_ns)(long); /* the same; nanoseconds by the device's events */
};

static inline double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

/* A file beside the program. */
static inline const char *beside(const char *name) {
    static char path[4096 + 64];
    char own[4096] = "";
    if (readlink("/proc/self/exe", own, sizeof own - 1) < 0)
        own[0] = 0;
    snprintf(path, sizeof path, "%s/%s", dirname(own), name);
    return path;
}

static inline long bursts(const struct loop *loop, long number) {
    long made = 0;
    while (made < number) {
        double begun = now();
        for (; now() - begun < 0.3 && made < number; made += 100)
            loop->launch(100);
        usleep(1500000);
    }
    return made;
}

/* This thread alone stays on a CPU: the injected library's own goes where it will. */
static inline void stay_on(const char *cpu) {
    cpu_set_t one;
    if (cpu == NULL)
        return;
    CPU_ZERO(&one);
    CPU_SET(atoi(cpu), &one);
    sched_setaffinity(0, sizeof one, &one);
}

static inline int serve(const struct loop *loop) {
    char what[16];
    long number;

    loop->launch(100);
    stay_on(getenv("GPU_CHECK_CPU"));
    puts("ready");
    fflush(stdout);
    while (scanf("%15s %ld", what, &number) == 2) {
        double begun = now();
        if (strcmp(what, "bursts") == 0) {
            printf("%ld\n", bursts(loop, number));
        } else if (strcmp(what, "profile") == 0) {
            double ns = loop->timed_ns(number);
            printf("{\"%s\": [%ld, %.0f]}\n", loop->kernel, number, ns);
        } else {
            loop->launch(number);
            printf("%.9f\n", now() - begun);
        }
        fflush(stdout);
    }
    return 0;
}
