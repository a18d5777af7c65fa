/* A library for LD_PRELOAD that gives a process a faulty machine: a wall clock that is off, a disk that is slow or full, no memory.
 *
 * FAULTY_MACHINE names a file of four 64-bit integers, which may change at any time: milliseconds that the wall clock is ahead,
 * milliseconds that each sync takes longer, whether writes to files fail with ENOSPC, and whether blocks of memory of 1 KiB and more are
 * refused. Children share it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct machine {
    volatile int64_t clock_ahead_ms, sync_delay_ms, is_full, lacks_memory;
};

static struct machine sound;
static struct machine *machine = &sound;

__attribute__((constructor)) static void open_machine(void) {
    const char *path = getenv("FAULTY_MACHINE");
    int descriptor = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (descriptor < 0)
        return;
    void *shared = mmap(NULL, sizeof *machine, PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (shared != MAP_FAILED)
        machine = shared;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) \
        real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int clock_gettime(clockid_t clock, struct timespec *time) {
    REAL(clock_gettime);
    int status = real(clock, time);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && machine->clock_ahead_ms) {
        int64_t ahead_ms = machine->clock_ahead_ms;
        int64_t nanoseconds = time->tv_nsec + ahead_ms % 1000 * 1000000;
        time->tv_sec += ahead_ms / 1000 + (nanoseconds >= 1000000000) - (nanoseconds < 0);
        time->tv_nsec = (nanoseconds + 1000000000) % 1000000000;
    }
    return status;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int status = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return status;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}

static void delay(void) {
    if (machine->sync_delay_ms) {
        struct timespec pause = {machine->sync_delay_ms / 1000, machine->sync_delay_ms % 1000 * 1000000};
        nanosleep(&pause, NULL);
    }
}

int fsync(int descriptor) {
    REAL(fsync);
    delay();
    return real(descriptor);
}

int fdatasync(int descriptor) {
    REAL(fdatasync);
    delay();
    return real(descriptor);
}

static int is_refused(int descriptor) {
    struct stat file;
    if (!machine->is_full || fstat(descriptor, &file) != 0 || !S_ISREG(file.st_mode))
        return 0;
    errno = ENOSPC;
    return 1;
}

#define WRITES(name, parameters, arguments) \
    ssize_t name parameters { \
        REAL(name); \
        return is_refused(descriptor) ? -1 : real arguments; \
    }

WRITES(write, (int descriptor, const void *bytes, size_t size), (descriptor, bytes, size))
WRITES(pwrite, (int descriptor, const void *bytes, size_t size, off_t offset), (descriptor, bytes, size, offset))
WRITES(pwrite64, (int descriptor, const void *bytes, size_t size, off64_t offset), (descriptor, bytes, size, offset))
WRITES(writev, (int descriptor, const struct iovec *parts, int count), (descriptor, parts, count))
WRITES(pwritev, (int descriptor, const struct iovec *parts, int count, off_t offset), (descriptor, parts, count, offset))
WRITES(pwritev64, (int descriptor, const struct iovec *parts, int count, off64_t offset), (descriptor, parts, count, offset))

/* glibc's own allocator, which dlsym would need to be found. */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);

static int is_denied(size_t size) {
    if (!machine->lacks_memory || size < 1024)
        return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) { return is_denied(size) ? NULL : __libc_malloc(size); }

void *calloc(size_t count, size_t size) { return is_denied(count * size) ? NULL : __libc_calloc(count, size); }

void *realloc(void *block, size_t size) { return is_denied(size) ? NULL : __libc_realloc(block, size); }
