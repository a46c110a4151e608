/* Loads, unloads, forks and executes as lines of stdin say. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(void) {
    char line[4096];
    void *loaded = 0;
    while (fgets(line, sizeof line, stdin)) {
        int said = 1;
        char *argument = strchr(line, ' ');
        line[strcspn(line, "\n")] = 0;
        if (argument) *argument++ = 0;
        if (!strcmp(line, "load")) said = (loaded = dlopen(argument, RTLD_NOW)) != 0;
        if (!strcmp(line, "unload")) said = !dlclose(loaded);
        if (!strcmp(line, "fork") && !(said = fork())) { pause(); _exit(0); }
        if (!strcmp(line, "exec")) execl(argument, argument, "60", (char *)0);
        printf("%d\n", said);
        fflush(stdout);
    }
    return 0;
}
