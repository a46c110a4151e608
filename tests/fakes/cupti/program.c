/* A GPU program without a GPU: loads the fake driver and CUPTI, has the library injected as the driver does, and works by
 * the lines of its input, each answered by one line. Its work's times begin at 1 second and go on from there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NAMES = 1 << 16, NAME = 64, PACE = 8000, PAIRS = 32, THREADS = 8, VARIED = 64, LONGEST = 700 };

static void (*kernel)(const char *, uint32_t, uint64_t, uint64_t, uint32_t);
static void (*copy)(uint8_t, uint64_t, uint32_t, uint64_t, uint64_t);
static void (*whole)(uint32_t, uint32_t, uint64_t, uint64_t);
static void (*set)(uint64_t, uint32_t, uint64_t, uint64_t);
static void (*overhead)(uint64_t, uint64_t);
static void (*unknown)(void);
static void (*lost)(uint64_t);
static uint64_t (*least)(uint64_t);
static int (*subscribe)(void **, void *, void *);
static atomic_uint_fast64_t clock_ns = 1000000000;
static char kept[NAMES][NAME];
static int pairs[PAIRS][2];

static uint64_t now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static uint64_t next(uint64_t ns) {
    return atomic_fetch_add(&clock_ns, ns + 10) + 10;
}

/* Not faster than a device would. */
static void pace(uint64_t done) {
    if (done % PACE == PACE - 1)
        usleep(2000);
}

static const char *name_of(const char *given) {
    static atomic_uint used;
    char *name = kept[used++ % NAMES];
    snprintf(name, NAME, "%s", given);
    return name;
}

static void many_names(uint64_t number) {
    for (uint64_t i = 0; i < number; i++) {
        char name[NAME];
        snprintf(name, sizeof name, "unknown_%llu", (unsigned long long)i);
        uint64_t start = next(100);
        kernel(name_of(name), 0, start, start + 100, 0);
        pace(i);
    }
}

/* Names as compilers make them: 64 that differ at their ends, of 40 to 670 characters. */
static const char *varied(uint64_t i) {
    static char names[VARIED][LONGEST];
    char *name = names[i % VARIED];
    if (name[0] == 0) {
        memset(name, 'v', 30 + 10 * (i % VARIED));
        snprintf(name + 30 + 10 * (i % VARIED), 16, "_%llu", (unsigned long long)(i % VARIED));
    }
    return name;
}

/* Each of 599 characters. */
static void long_names(uint64_t number) {
    static char names[4096][600];
    for (uint64_t i = 0; i < number; i++) {
        memset(names[i % 4096], 'x', 599);
        names[i % 4096][snprintf(names[i % 4096], 600, "%llu", (unsigned long long)i)] = 'x';
        uint64_t start = next(100);
        kernel(names[i % 4096], 0, start, start + 100, 0);
    }
}

static void kernels(const char *name, uint64_t number, uint32_t device, uint64_t ns, uint32_t graph, int paced) {
    name = name_of(name);
    for (uint64_t i = 0; i < number; i++) {
        uint64_t start = next(ns);
        kernel(name, device, start, start + ns, graph);
        if (paced)
            pace(i);
    }
}

/* One thread's share: so many kernels of a name, or of varied names, not more than so many at once. */
struct share {
    const char *name;
    uint64_t number, ns, pace;
};

static void *make_share(void *of) {
    const struct share *share = of;
    for (uint64_t i = 0; i < share->number; i++) {
        uint64_t start = next(share->ns);
        kernel(share->name ? share->name : varied(i), 0, start, start + share->ns, 0);
        if (i % share->pace == share->pace - 1)
            usleep(2000);
    }
    return NULL;
}

/* As many from each of the threads. */
static void threaded(const char *name, uint64_t number, unsigned threads, uint64_t ns, uint64_t pace) {
    for (int i = 0; i < VARIED; i++)
        varied((uint64_t)i);
    struct share share = {strcmp(name, "varied") == 0 ? NULL : name_of(name), number, ns, pace ? pace : PACE / threads};
    pthread_t made[THREADS];
    for (unsigned i = 0; i < threads && i < THREADS; i++)
        if (pthread_create(&made[i], NULL, make_share, &share) != 0)
            abort();
    for (unsigned i = 0; i < threads && i < THREADS; i++)
        pthread_join(made[i], NULL);
}

static void *open_slowly(void *unused) {
    (void)unused;
    return dlopen(getenv("FAKE_SLOW"), RTLD_NOW);
}

/* Hold the loader's lock for as long as that library takes to load. */
static void hold_loader(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, open_slowly, NULL) != 0 || pthread_detach(thread) != 0)
        abort();
    usleep(100000);
    printf("held\n");
}

/* A child that does nothing but end as programs do, made past the C library or by it; gives its milliseconds. */
static void fork_and_exit(int past) {
    uint64_t begun = now_us();
    pid_t child = past ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    if (child == 0)
        exit(3);
    int status = 0;
    waitpid(child, &status, 0);
    printf("child %d %llu\n", WEXITSTATUS(status), (unsigned long long)(now_us() - begun) / 1000);
}

/* A child that outlives its parent, with every descriptor but its input and output. */
static void fork_and_stay(void) {
    pid_t child = fork();
    if (child == 0) {
        sleep(30);
        _exit(0);
    }
    printf("child %d\n", child);
}

/* Close every descriptor and open sockets with something in them at the same numbers. */
static void close_all(void) {
    close_range(3, ~0u, 0);
    for (int i = 0; i < PAIRS; i++) {
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, pairs[i]) != 0)
            abort();
        for (int end = 0; end < 2; end++)
            if (send(pairs[i][end], "private", 7, 0) != 7)
                abort();
    }
    printf("closed\n");
}

/* How many of these sockets still hold what was put in them, and nothing else. */
static void still_whole(void) {
    int whole = 0;
    char text[2][64];
    for (int i = 0; i < PAIRS; i++)
        for (int end = 0; end < 2; end++) {
            ssize_t first = recv(pairs[i][end], text[0], sizeof text[0], 0);
            ssize_t second = recv(pairs[i][end], text[1], sizeof text[1], 0);
            whole += first == 7 && memcmp(text[0], "private", 7) == 0 && second < 0;
        }
    printf("whole %d\n", whole);
}

static uint64_t cpu_ns(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* CPU time of so many launches that nothing waits for, in this thread and in the process. */
static void timed(const char *name, uint64_t number) {
    uint64_t thread = cpu_ns(CLOCK_THREAD_CPUTIME_ID), process = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
    kernels(name, number, 0, 10, 0, 0);
    thread = cpu_ns(CLOCK_THREAD_CPUTIME_ID) - thread;
    process = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - process;
    printf("cpu %llu %llu\n", (unsigned long long)thread, (unsigned long long)process);
}

static void ignore(void) {}

static void *load(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(9);
    }
    return library;
}

static void inject(void) {
    void *library = load(getenv("CUDA_INJECTION64_PATH"));
    int (*begin)(void);
    *(void **)&begin = dlsym(library, "InitializeInjection");
    if (begin() != 1)
        exit(8);
    dlclose(library);
}

static void fake(void) {
    void *cupti = load(getenv("POINTILLIST_CUPTI"));
#define TAKE(name, from) *(void **)&name = dlsym(cupti, from)
    TAKE(kernel, "fake_kernel");
    TAKE(copy, "fake_copy");
    TAKE(whole, "fake_graph");
    TAKE(set, "fake_memset");
    TAKE(overhead, "fake_overhead");
    TAKE(least, "fake_floor");
    TAKE(unknown, "fake_unknown");
    TAKE(lost, "fake_lost");
    TAKE(subscribe, "cuptiSubscribe");
}

static void work(const char *what, const char *name, uint64_t n, uint32_t device, uint64_t ns, uint32_t graph) {
    if (strcmp(what, "kernels") == 0)
        kernels(name, n, device, ns, graph, 1);
    else if (strcmp(what, "threaded") == 0)
        threaded(name, n, device, ns, graph);
    else if (strcmp(what, "graphs") == 0)
        for (uint64_t i = 0, start; i < n; i++)
            start = next(ns), whole(device, graph, start, start + ns);
    else if (strcmp(what, "flat-out") == 0)
        kernels(name, n, device, ns, graph, 0);
    else if (strcmp(what, "long-names") == 0)
        long_names(n);
    else if (strcmp(what, "names") == 0)
        many_names(n);
    else if (strcmp(what, "copies") == 0)
        for (uint64_t i = 0, start; i < n; i++)
            start = next(ns), copy((uint8_t)atoi(name), 64, device, start, start + ns);
    else if (strcmp(what, "memsets") == 0)
        for (uint64_t i = 0, start; i < n; i++)
            start = next(ns), set(32, device, start, start + ns);
    else if (strcmp(what, "overheads") == 0)
        for (uint64_t i = 0, start; i < n; i++)
            start = next(ns), overhead(start, start + ns);
    else if (strcmp(what, "unended") == 0)
        for (uint64_t i = 0; i < n; i++)
            kernel(name_of(name), device, next(ns), 0, 0);
    else if (strcmp(what, "reversed") == 0)
        for (uint64_t i = 0, start; i < n; i++)
            start = next(ns), kernel(name_of(name), device, start, start - 1, 0);
    else if (strcmp(what, "unknown") == 0)
        for (uint64_t i = 0; i < n; i++)
            unknown();
    else if (strcmp(what, "lost") == 0)
        lost(n);
    else
        exit(7);
    printf("done %llu\n", (unsigned long long)n);
}

/* Runs until the end of its input; `exit CODE` ends it at once. */
int main(int count, char **arguments) {
    load(getenv("FAKE_DRIVER"));
    if (getenv("WITHOUT_CUPTI") == NULL)
        fake();
    if (count == 1)
        inject();
    printf("ready\n");
    fflush(stdout);
    char line[256], what[32], name[NAME] = "";
    while (fgets(line, sizeof line, stdin) != NULL) {
        unsigned long long n = 0, ns = 0;
        unsigned device = 0, graph = 0;
        void *subscriber;
        sscanf(line, "%31s %63s %llu %u %llu %u", what, name, &n, &device, &ns, &graph);
        if (strcmp(what, "exit") == 0)
            exit(atoi(name));
        else if (strcmp(what, "fork") == 0)
            fork_and_exit(0);
        else if (strcmp(what, "fork-past") == 0)
            fork_and_exit(1);
        else if (strcmp(what, "fork-and-stay") == 0)
            fork_and_stay();
        else if (strcmp(what, "exec") == 0)
            execv("/proc/self/exe", arguments);
        else if (strcmp(what, "close") == 0)
            printf("closed %d\n", close(atoi(name)));
        else if (strcmp(what, "close-all") == 0)
            close_all();
        else if (strcmp(what, "timed") == 0)
            timed(name, n);
        else if (strcmp(what, "floor") == 0)
            printf("floor %llu\n", (unsigned long long)least(n));
        else if (strcmp(what, "hold-loader") == 0)
            hold_loader();
        else if (strcmp(what, "whole") == 0)
            still_whole();
        else if (strcmp(what, "inject") == 0)
            inject(), printf("injected\n");
        else if (strcmp(what, "occupy") == 0)
            printf("subscribed %d\n", subscribe(&subscriber, ignore, NULL));
        else
            work(what, name, n, device, ns, graph);
        fflush(stdout);
    }
    return 0;
}
