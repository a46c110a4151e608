"""Real processes whose machine's clock a test steps: a library before libc's, a file a role.

The kernel's own clock is never touched.
"""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROLES: Final = ("leader", "helper", "witness", "agent", "simulate")

_SOURCE: Final = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Seconds by which the wall clock and the boot clock are ahead. */
static volatile long long none[2], *steps = none;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *roles[] = {"leader", "helper", "witness", "agent", "simulate"};
    char line[4096] = "", path[4096];
    int at = open("/proc/self/cmdline", O_RDONLY);
    ssize_t length = read(at, line, sizeof line - 1);
    close(at);
    for (ssize_t each = 0; each < length; each++) if (!line[each]) line[each] = ' ';
    real = dlsym(RTLD_NEXT, "clock_gettime");
    for (int role = 0; role < 5; role++) {
        snprintf(path, sizeof path, "pointillist %s ", roles[role]);
        if (!strstr(line, path)) continue;
        snprintf(path, sizeof path, "%s/%s", getenv("STEPPED_CLOCKS"), roles[role]);
        int file = open(path, O_RDONLY);
        void *found = mmap(0, 16, PROT_READ, MAP_SHARED, file, 0);
        if (found != MAP_FAILED) steps = found;
        close(file);
        return;
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += steps[0];
    if (clock == CLOCK_BOOTTIME) now->tv_sec += steps[1];
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    (void)zone;
    struct timespec told;
    clock_gettime(CLOCK_REALTIME, &told);
    now->tv_sec = told.tv_sec;
    now->tv_usec = told.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *into) {
    struct timespec told;
    clock_gettime(CLOCK_REALTIME, &told);
    if (into) *into = told.tv_sec;
    return told.tv_sec;
}
"""


class SteppedClocks:
    """Clocks of the roles that this process begins from now on, all right at first."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        if shutil.which("gcc") is None:
            pytest.skip("needs gcc, as make tools installs it")
        folder.mkdir()
        source, library = folder / "clock.c", folder / "clock.so"
        source.write_text(_SOURCE)
        command = ["gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
        subprocess.run(command, check=True, timeout=60)
        for role in ROLES:
            (folder / role).write_bytes(bytes(16))
        self._folder = folder
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("STEPPED_CLOCKS", str(folder))

    def step(self, role: str, wall_s: int = 0, boot_s: int = 0) -> None:
        """Have a role's clocks be so far ahead, at once."""
        with (self._folder / role).open("r+b") as file, mmap.mmap(file.fileno(), 16) as both:
            both[:] = struct.pack("=qq", wall_s, boot_s)
