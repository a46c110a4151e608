/* Descriptors that the application does not notice, and whether one is still the file that was opened: applications close
 * descriptors that they did not open, and open others at the same number. */
#pragma once

#include <fcntl.h>
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

/* Move a descriptor from the numbers of input, output and errors: an application that was started without them writes there
 * all the same. -1 when the system refuses. */
static inline int above_standard(int fd) {
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(fd);
    return moved;
}

static inline bool still_is(int fd, struct file file) {
    struct file now = file_of(fd);
    return now.inode != 0 && now.inode == file.inode && now.device == file.device;
}
