/*
 * Fault injection for the conformance suite, loaded with LD_PRELOAD.
 *
 * A rule names an operation and a token. A call on a file whose path contains the token can be held
 * until the rule is dropped, delayed, cut short or failed. Positional reads and writes are seen both
 * as libc calls and as Linux AIO requests that pass through syscall(2). Without rules every call
 * goes straight through. The suite sets rules with ctypes, see faults.py.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum op { READ, WRITE, OPEN, OPEN_DIRECT, CLOSE, SYNC, PUBLISH, STAT, UNLINK };

struct rule {
    int live;
    enum op op;
    char token[256];
    long offset; /* only I/O that starts here; -1: any */
    long skip;   /* matching calls that pass untouched first */
    long count;  /* matching calls that are hit after those; -1: all */
    int error;   /* errno to fail with; 0: none */
    long limit;  /* bytes let through per call; -1: all */
    long delay;  /* milliseconds; -1: held until the rule is dropped */
    long seen;
};

struct effect {
    int id, error;
    long limit, delay;
};

#define N_RULE 64
static struct rule rules[N_RULE];
static atomic_int n_live;
static atomic_long active;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t dropped = PTHREAD_COND_INITIALIZER;

/* ---- what the suite calls ---- */

int inject_add(int op, const char *token, long offset, long skip, long count, int error, long limit,
               long delay)
{
    int id = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < N_RULE && id < 0; i++) {
        if (rules[i].live) { continue; }
        struct rule *r = &rules[i];
        *r = (struct rule){1, op, "", offset, skip, count, error, limit, delay, 0};
        snprintf(r->token, sizeof r->token, "%s", token);
        id = i;
        atomic_fetch_add(&n_live, 1);
    }
    pthread_mutex_unlock(&lock);
    return id;
}

void inject_drop(int id)
{
    pthread_mutex_lock(&lock);
    if (rules[id].live) { atomic_fetch_sub(&n_live, 1); }
    rules[id].live = 0;
    pthread_cond_broadcast(&dropped);
    pthread_mutex_unlock(&lock);
}

long inject_seen(int id)
{
    pthread_mutex_lock(&lock);
    long n = rules[id].seen;
    pthread_mutex_unlock(&lock);
    return n;
}

/* Reads and writes that a rule was hit by and that have not ended. */
long inject_active(void) { return atomic_load(&active); }

/* ---- matching ---- */

static int match(enum op op, const char *path, long offset, struct effect *out)
{
    int hit = 0;
    *out = (struct effect){-1, 0, -1, 0};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < N_RULE && !hit; i++) {
        struct rule *r = &rules[i];
        if (!r->live || r->op != op || !strstr(path, r->token)) { continue; }
        if (r->offset >= 0 && r->offset != offset) { continue; }
        long nth = r->seen++;
        if (nth < r->skip || (r->count >= 0 && nth >= r->skip + r->count)) { continue; }
        *out = (struct effect){i, r->error, r->limit, r->delay};
        hit = 1;
    }
    pthread_mutex_unlock(&lock);
    return hit;
}

static int match_fd(enum op op, int fd, long offset, struct effect *out)
{
    if (atomic_load(&n_live) == 0) { return 0; }
    char link[64], path[PATH_MAX];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (n < 0) { return 0; }
    path[n] = 0;
    return match(op, path, offset, out);
}

static int match_at(enum op op, int dir, const char *path, struct effect *out)
{
    if (atomic_load(&n_live) == 0 || !path) { return 0; }
    if (path[0] == '/' || dir == AT_FDCWD) { return match(op, path, -1, out); }
    char link[64], full[PATH_MAX * 2];
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    ssize_t n = readlink(link, full, PATH_MAX - 1);
    errno = saved;
    if (n < 0) { return 0; }
    snprintf(full + n, sizeof full - n, "/%s", path);
    return match(op, full, -1, out);
}

static void stall(const struct effect *e)
{
    if (e->delay > 0) {
        struct timespec t = {e->delay / 1000, e->delay % 1000 * 1000000L};
        while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
    }
    if (e->delay >= 0) { return; }
    pthread_mutex_lock(&lock);
    while (rules[e->id].live) { pthread_cond_wait(&dropped, &lock); }
    pthread_mutex_unlock(&lock);
}

/* Waits as the rule says; true when the call has to fail (errno set). */
static int fails(const struct effect *e)
{
    stall(e);
    if (e->error) { errno = e->error; }
    return e->error != 0;
}

#define REAL(ret, name, ...)                                                                       \
    static ret (*real)(__VA_ARGS__);                                                               \
    if (!real) { real = (ret (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name); }

/* ---- positional I/O through libc ---- */

static size_t cut(const struct effect *e, size_t n)
{
    return e->limit >= 0 && (size_t)e->limit < n ? (size_t)e->limit : n;
}

/* Copies the leading `limit` bytes' worth of `from`; the number of entries in `to`. */
static int cut_vector(const struct effect *e, const struct iovec *from, int n, struct iovec *to)
{
    size_t left = e->limit < 0 ? SIZE_MAX : (size_t)e->limit;
    int used = 0;
    for (; used < n && left > 0; used++) {
        to[used] = from[used];
        if (to[used].iov_len > left) { to[used].iov_len = left; }
        left -= to[used].iov_len;
    }
    return used;
}

#define PLAIN(name, op, buffer)                                                                    \
    ssize_t name(int fd, buffer b, size_t n, off_t at)                                             \
    {                                                                                              \
        REAL(ssize_t, name, int, buffer, size_t, off_t)                                            \
        struct effect e;                                                                           \
        if (!match_fd(op, fd, at, &e)) { return real(fd, b, n, at); }                              \
        atomic_fetch_add(&active, 1);                                                              \
        ssize_t done = fails(&e) ? -1 : real(fd, b, cut(&e, n), at);                               \
        atomic_fetch_sub(&active, 1);                                                              \
        return done;                                                                               \
    }
PLAIN(pread, READ, void *)
PLAIN(pread64, READ, void *)
PLAIN(pwrite, WRITE, const void *)
PLAIN(pwrite64, WRITE, const void *)

#define VECTOR(name, op, params, args)                                                             \
    ssize_t name params                                                                            \
    {                                                                                              \
        REAL(ssize_t, name, VECTOR_TYPES)                                                          \
        struct effect e;                                                                           \
        struct iovec vec[IOV_MAX];                                                                 \
        if (!match_fd(op, fd, at, &e) || n < 0 || n > IOV_MAX) { return real args; }               \
        atomic_fetch_add(&active, 1);                                                              \
        ssize_t done = -1;                                                                         \
        if (!fails(&e)) {                                                                          \
            n = cut_vector(&e, v, n, vec);                                                         \
            v = vec;                                                                               \
            done = real args;                                                                      \
        }                                                                                          \
        atomic_fetch_sub(&active, 1);                                                              \
        return done;                                                                               \
    }
#define VECTOR_TYPES int, const struct iovec *, int, off_t
VECTOR(preadv, READ, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
VECTOR(preadv64, READ, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
VECTOR(pwritev, WRITE, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
VECTOR(pwritev64, WRITE, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at))
#undef VECTOR_TYPES
#define VECTOR_TYPES int, const struct iovec *, int, off_t, int
VECTOR(preadv2, READ, (int fd, const struct iovec *v, int n, off_t at, int f), (fd, v, n, at, f))
VECTOR(preadv64v2, READ, (int fd, const struct iovec *v, int n, off_t at, int f), (fd, v, n, at, f))
VECTOR(pwritev2, WRITE, (int fd, const struct iovec *v, int n, off_t at, int f), (fd, v, n, at, f))
VECTOR(pwritev64v2, WRITE, (int fd, const struct iovec *v, int n, off_t at, int f),
       (fd, v, n, at, f))

/* ---- opening, closing, publishing ---- */

static int open_fails(int dir, const char *path, int flags)
{
    struct effect e;
    if ((flags & O_DIRECT) && match_at(OPEN_DIRECT, dir, path, &e) && fails(&e)) { return 1; }
    return match_at(OPEN, dir, path, &e) && fails(&e);
}

#define MODE(flags)                                                                                \
    mode_t mode = 0;                                                                               \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                         \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode = va_arg(rest, mode_t);                                                               \
        va_end(rest);                                                                              \
    }

#define OPENS(name)                                                                                \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        REAL(int, name, const char *, int, ...)                                                    \
        MODE(flags)                                                                                \
        return open_fails(AT_FDCWD, path, flags) ? -1 : real(path, flags, mode);                   \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                                             \
    int name(int dir, const char *path, int flags, ...)                                            \
    {                                                                                              \
        REAL(int, name, int, const char *, int, ...)                                               \
        MODE(flags)                                                                                \
        return open_fails(dir, path, flags) ? -1 : real(dir, path, flags, mode);                   \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

/* Only descriptors open for writing: an error of close is where a network mount reports lost data. */
int close(int fd)
{
    REAL(int, close, int)
    struct effect e;
    int flags = atomic_load(&n_live) ? fcntl(fd, F_GETFL) : O_RDONLY;
    if ((flags & O_ACCMODE) == O_RDONLY || !match_fd(CLOSE, fd, -1, &e)) { return real(fd); }
    int bad = fails(&e);
    int rc = real(fd);
    if (bad) { errno = e.error; }
    return bad ? -1 : rc;
}

#define SYNCS(name)                                                                                \
    int name(int fd)                                                                               \
    {                                                                                              \
        REAL(int, name, int)                                                                       \
        struct effect e;                                                                           \
        return match_fd(SYNC, fd, -1, &e) && fails(&e) ? -1 : real(fd);                            \
    }
SYNCS(fsync)
SYNCS(fdatasync)
SYNCS(syncfs)

#define PUBLISHES(name, params, types, args, dir, path)                                            \
    int name params                                                                                \
    {                                                                                              \
        REAL(int, name, types)                                                                     \
        struct effect e;                                                                           \
        return match_at(PUBLISH, dir, path, &e) && fails(&e) ? -1 : real args;                     \
    }
#define TYPES const char *, const char *
PUBLISHES(rename, (const char *a, const char *b), TYPES, (a, b), AT_FDCWD, b)
PUBLISHES(link, (const char *a, const char *b), TYPES, (a, b), AT_FDCWD, b)
#undef TYPES
#define TYPES int, const char *, int, const char *
PUBLISHES(renameat, (int d, const char *a, int f, const char *b), TYPES, (d, a, f, b), f, b)
#undef TYPES
#define TYPES int, const char *, int, const char *, unsigned
PUBLISHES(renameat2, (int d, const char *a, int f, const char *b, unsigned g), TYPES,
          (d, a, f, b, g), f, b)
#undef TYPES
#define TYPES int, const char *, int, const char *, int
PUBLISHES(linkat, (int d, const char *a, int f, const char *b, int g), TYPES, (d, a, f, b, g), f, b)
#undef TYPES

#define ASKS(name, op, params, types, args, dir)                                                   \
    int name params                                                                                \
    {                                                                                              \
        REAL(int, name, types)                                                                     \
        struct effect e;                                                                           \
        return match_at(op, dir, p, &e) && fails(&e) ? -1 : real args;                             \
    }
#define TYPES const char *, struct stat *
ASKS(stat, STAT, (const char *p, struct stat *s), TYPES, (p, s), AT_FDCWD)
ASKS(lstat, STAT, (const char *p, struct stat *s), TYPES, (p, s), AT_FDCWD)
#undef TYPES
#define TYPES const char *, struct stat64 *
ASKS(stat64, STAT, (const char *p, struct stat64 *s), TYPES, (p, s), AT_FDCWD)
ASKS(lstat64, STAT, (const char *p, struct stat64 *s), TYPES, (p, s), AT_FDCWD)
#undef TYPES
#define TYPES int, const char *, struct stat *, int
ASKS(fstatat, STAT, (int d, const char *p, struct stat *s, int f), TYPES, (d, p, s, f), d)
#undef TYPES
#define TYPES int, const char *, struct stat64 *, int
ASKS(fstatat64, STAT, (int d, const char *p, struct stat64 *s, int f), TYPES, (d, p, s, f), d)
#undef TYPES
#define TYPES int, const char *, int, unsigned, struct statx *
ASKS(statx, STAT, (int d, const char *p, int f, unsigned m, struct statx *s), TYPES,
     (d, p, f, m, s), d)
#undef TYPES
#define TYPES const char *, int
ASKS(access, STAT, (const char *p, int m), TYPES, (p, m), AT_FDCWD)
#undef TYPES
#define TYPES int, const char *, int, int
ASKS(faccessat, STAT, (int d, const char *p, int m, int f), TYPES, (d, p, m, f), d)
#undef TYPES
#define TYPES const char *
ASKS(unlink, UNLINK, (const char *p), TYPES, (p), AT_FDCWD)
ASKS(remove, UNLINK, (const char *p), TYPES, (p), AT_FDCWD)
#undef TYPES
#define TYPES int, const char *, int
ASKS(unlinkat, UNLINK, (int d, const char *p, int f), TYPES, (d, p, f), d)
#undef TYPES

/* ---- Linux AIO: requests that a rule hits are submitted as changed copies ---- */

struct request {
    struct iocb copy;
    struct iocb *original;
    struct effect effect;
    aio_context_t context;
    struct iovec vec[IOV_MAX];
    struct request *next;
};
static struct request *pending;

static long (*real_syscall)(long, ...);

static enum op request_op(const struct iocb *cb)
{
    return cb->aio_lio_opcode == IOCB_CMD_PWRITE || cb->aio_lio_opcode == IOCB_CMD_PWRITEV ? WRITE
                                                                                           : READ;
}

/* A request that must fail moves nothing and gets its error when it is reaped. */
static void prepare(struct request *r)
{
    struct effect e = r->effect;
    if (e.error) { e.limit = 0; }
    if (r->copy.aio_lio_opcode == IOCB_CMD_PREADV || r->copy.aio_lio_opcode == IOCB_CMD_PWRITEV) {
        const struct iovec *from = (const struct iovec *)(uintptr_t)r->copy.aio_buf;
        r->copy.aio_nbytes = cut_vector(&e, from, (int)r->copy.aio_nbytes, r->vec);
        r->copy.aio_buf = (uintptr_t)r->vec;
    } else {
        r->copy.aio_nbytes = cut(&e, r->copy.aio_nbytes);
    }
}

static void *submit_late(void *arg)
{
    struct request *r = arg;
    struct iocb *cb = &r->copy;
    stall(&r->effect);
    while (real_syscall(SYS_io_submit, r->context, 1L, &cb) != 1) {
        if (errno != EAGAIN) {
            fputs("inject: the store's AIO context went away under a held request\n", stderr);
            break;
        }
        usleep(1000);
    }
    return NULL;
}

static void submit_changed(aio_context_t context, struct iocb *cb, const struct effect *e)
{
    struct request *r = calloc(1, sizeof *r);
    r->copy = *cb;
    r->original = cb;
    r->effect = *e;
    r->context = context;
    prepare(r);
    atomic_fetch_add(&active, 1);
    pthread_mutex_lock(&lock);
    r->next = pending;
    pending = r;
    pthread_mutex_unlock(&lock);
    pthread_t thread;
    if (e->delay == 0) {
        submit_late(r);
    } else if (pthread_create(&thread, NULL, submit_late, r) == 0) {
        pthread_detach(thread);
    } else {
        abort();
    }
}

static long submit(aio_context_t context, long n, struct iocb **cbs)
{
    for (long i = 0; i < n; i++) {
        struct effect e;
        if (match_fd(request_op(cbs[i]), cbs[i]->aio_fildes, cbs[i]->aio_offset, &e)) {
            submit_changed(context, cbs[i], &e);
            continue;
        }
        long rc = real_syscall(SYS_io_submit, context, 1L, &cbs[i]);
        if (rc != 1) { return i > 0 ? i : rc; }
    }
    return n;
}

static void restore(struct io_event *event)
{
    pthread_mutex_lock(&lock);
    struct request **at = &pending;
    while (*at && (uintptr_t)&(*at)->copy != event->obj) { at = &(*at)->next; }
    struct request *r = *at;
    if (r) { *at = r->next; }
    pthread_mutex_unlock(&lock);
    if (!r) { return; }
    event->obj = (uintptr_t)r->original;
    if (r->effect.error) { event->res = -r->effect.error; }
    atomic_fetch_sub(&active, 1);
    free(r);
}

long syscall(long number, ...)
{
    long a[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++) { a[i] = va_arg(rest, long); }
    va_end(rest);
    if (!real_syscall) { real_syscall = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"); }
    if (number == SYS_io_submit && atomic_load(&n_live)) {
        return submit((aio_context_t)a[0], a[1], (struct iocb **)a[2]);
    }
    long rc = real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (number == SYS_io_getevents || number == SYS_io_pgetevents) {
        for (long i = 0; i < rc; i++) { restore((struct io_event *)a[3] + i); }
    }
    return rc;
}
