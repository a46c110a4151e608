/* Whether a descriptor is still the file that was opened: applications close descriptors that they did not open, and open
 * others at the same number. */
#pragma once

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct file {
    dev_t device;
    ino_t inode;
};

/* The file behind a descriptor; zeros where there is none. Not fstat(), which glibc has had since 2.33 only. */
static inline struct file file_of(int fd) {
    struct stat now;
    if (fd < 0 || syscall(SYS_fstat, fd, &now) != 0)
        return (struct file){0, 0};
    return (struct file){now.st_dev, now.st_ino};
}

static inline bool still_is(int fd, struct file file) {
    struct file now = file_of(fd);
    return now.inode != 0 && now.inode == file.inode && now.device == file.device;
}
