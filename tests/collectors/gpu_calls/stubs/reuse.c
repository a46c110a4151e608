/* Runs a program under a pid that is free: what the kernel does after a while, done at once. */
#define _GNU_SOURCE
#include <linux/sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
    pid_t wanted = atoi(words[1]);
    struct clone_args how;
    memset(&how, 0, sizeof how);
    how.set_tid = (__u64)(unsigned long)&wanted;
    how.set_tid_size = 1;
    how.exit_signal = SIGCHLD;
    long child = syscall(SYS_clone3, &how, sizeof how);
    if (child < 0) return 3;
    if (!child) { execv(words[2], words + 2); _exit(4); }
    return waitpid(child, 0, 0) == child ? 0 : 5;
}
