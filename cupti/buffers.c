#define _GNU_SOURCE
#include "buffers.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <time.h>

static uint8_t *arena;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t enough;
static uint8_t *free_ones[BUFFERS];
static uint32_t free_count;
static struct filled line[BUFFERS];
static uint32_t line_from, line_count;
static uint64_t refused;

int buffers_make(void) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&enough, &attributes);
    void *memory = mmap(NULL, (size_t)BUFFERS * BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return -1;
    arena = memory;
    buffers_reset(); /* the last given back is the first taken: few pages are touched */
    return 0;
}

void buffers_reset(void) {
    pthread_mutex_lock(&lock);
    line_count = 0;
    for (free_count = 0; free_count < BUFFERS; free_count++)
        free_ones[free_count] = arena + (size_t)(BUFFERS - 1 - free_count) * BUFFER_BYTES;
    pthread_mutex_unlock(&lock);
}

uint8_t *buffers_take(void) {
    pthread_mutex_lock(&lock);
    uint8_t *bytes = free_count ? free_ones[--free_count] : NULL;
    refused += bytes == NULL;
    pthread_mutex_unlock(&lock);
    return bytes;
}

void buffers_fill(struct filled filled) {
    pthread_mutex_lock(&lock);
    if (line_count < BUFFERS)
        line[(line_from + line_count++) % BUFFERS] = filled;
    bool wakes = line_count == WAKES;
    pthread_mutex_unlock(&lock);
    if (wakes)
        pthread_cond_signal(&enough);
}

struct filled buffers_next(void) {
    struct filled next = {0};
    pthread_mutex_lock(&lock);
    if (line_count) {
        next = line[line_from];
        line_from = (line_from + 1) % BUFFERS;
        line_count--;
    }
    pthread_mutex_unlock(&lock);
    return next;
}

void buffers_give(uint8_t *bytes) {
    if (bytes < arena || bytes >= arena + (size_t)BUFFERS * BUFFER_BYTES)
        return;
    pthread_mutex_lock(&lock);
    if (free_count < BUFFERS)
        free_ones[free_count++] = bytes;
    pthread_mutex_unlock(&lock);
}

void buffers_wait(uint32_t milliseconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(milliseconds % 1000) * 1000000;
    until.tv_sec += milliseconds / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&lock);
    if (line_count < WAKES)
        pthread_cond_timedwait(&enough, &lock, &until);
    pthread_mutex_unlock(&lock);
}

uint64_t buffers_refused(void) {
    pthread_mutex_lock(&lock);
    uint64_t since = refused;
    refused = 0;
    pthread_mutex_unlock(&lock);
    return since;
}
