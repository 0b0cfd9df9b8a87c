/* The kernel's limit: a pool of threads that does the store's system calls and nothing else.
 *
 *   SET   open(O_CREAT|O_EXCL), pwritev, fstat, close, rename
 *   GET   open, fstat, preadv, close
 *   STAT  stat
 *
 * An operation succeeds when the file has exactly `size` bytes; its errno is kept otherwise
 * (ENODATA for another size). Paths and pieces are made by the caller, outside any timing.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { SET, GET, STAT };

struct op {
    const char *path;
    const char *temp; /* SET: written first, then renamed to path */
    const struct iovec *pieces;
    uint64_t size;
    int32_t count;
    int32_t error;
};

struct pool {
    pthread_t *threads;
    int n_threads;
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    unsigned generation;
    int busy, closing;
    enum kind kind;
    int direct;
    struct op *ops;
    size_t n_ops;
    size_t next; /* atomic */
};

typedef ssize_t (*mover)(int, const struct iovec *, int, off_t);

static int move_all(mover move, int fd, const struct op *op)
{
    struct iovec left[64];
    off_t at = 0;
    int first = 0;
    if (op->count > 64) { return EINVAL; }
    for (int i = 0; i < op->count; i++) { left[i] = op->pieces[i]; }
    while (first < op->count) {
        ssize_t moved = move(fd, left + first, op->count - first, at);
        if (moved < 0 && errno == EINTR) { continue; }
        if (moved <= 0) { return moved < 0 ? errno : ENODATA; }
        at += moved;
        for (; first < op->count && (size_t)moved >= left[first].iov_len; first++) {
            moved -= left[first].iov_len;
        }
        if (first < op->count) {
            left[first].iov_base = (char *)left[first].iov_base + moved;
            left[first].iov_len -= moved;
        }
    }
    return 0;
}

static int whole(int fd, const struct op *op)
{
    struct stat st;
    if (fstat(fd, &st) != 0) { return errno; }
    return (uint64_t)st.st_size == op->size ? 0 : ENODATA;
}

static int set(const struct op *op, int flags)
{
    int fd = open(op->temp, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | flags, 0640);
    if (fd < 0) { return errno; }
    int error = move_all(pwritev, fd, op);
    if (error == 0) { error = whole(fd, op); }
    if (close(fd) != 0 && error == 0) { error = errno; }
    if (error == 0 && rename(op->temp, op->path) != 0) { error = errno; }
    return error;
}

static int get(const struct op *op, int flags)
{
    int fd = open(op->path, O_RDONLY | O_CLOEXEC | flags);
    if (fd < 0) { return errno; }
    int error = whole(fd, op);
    if (error == 0) { error = move_all(preadv, fd, op); }
    close(fd);
    return error;
}

static int found(const struct op *op)
{
    struct stat st;
    if (stat(op->path, &st) != 0) { return errno; }
    return (uint64_t)st.st_size == op->size ? 0 : ENODATA;
}

static void run_one(struct op *op, enum kind kind, int direct)
{
    int flags = direct ? O_DIRECT : 0;
    op->error = kind == SET ? set(op, flags) : kind == GET ? get(op, flags) : found(op);
}

/* All operations on the calling thread, one after the other. */
void kernel_inline(struct op *ops, size_t n, int kind, int direct)
{
    for (size_t i = 0; i < n; i++) { run_one(ops + i, kind, direct); }
}

static void *worker(void *argument)
{
    struct pool *pool = argument;
    unsigned seen = 0;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (pool->generation == seen && !pool->closing) {
            pthread_cond_wait(&pool->work, &pool->mutex);
        }
        if (pool->closing) { break; }
        seen = pool->generation;
        pthread_mutex_unlock(&pool->mutex);
        for (;;) {
            size_t i = __atomic_fetch_add(&pool->next, 1, __ATOMIC_RELAXED);
            if (i >= pool->n_ops) { break; }
            run_one(pool->ops + i, pool->kind, pool->direct);
        }
        pthread_mutex_lock(&pool->mutex);
        if (--pool->busy == 0) { pthread_cond_signal(&pool->done); }
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

/* Spread the operations over the pool's threads; returns when all are done. */
void kernel_run(struct pool *pool, struct op *ops, size_t n, int kind, int direct)
{
    pthread_mutex_lock(&pool->mutex);
    pool->ops = ops;
    pool->n_ops = n;
    pool->kind = kind;
    pool->direct = direct;
    pool->next = 0;
    pool->busy = pool->n_threads;
    pool->generation++;
    pthread_cond_broadcast(&pool->work);
    while (pool->busy > 0) { pthread_cond_wait(&pool->done, &pool->mutex); }
    pthread_mutex_unlock(&pool->mutex);
}

void kernel_close(struct pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pool->closing = 1;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->n_threads; i++) { pthread_join(pool->threads[i], NULL); }
    free(pool->threads);
    free(pool);
}

struct pool *kernel_open(int n_threads)
{
    struct pool *pool = calloc(1, sizeof(*pool));
    pool->threads = calloc(n_threads, sizeof(pthread_t));
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->done, NULL);
    for (; pool->n_threads < n_threads; pool->n_threads++) {
        if (pthread_create(pool->threads + pool->n_threads, NULL, worker, pool) != 0) {
            kernel_close(pool);
            return NULL;
        }
    }
    return pool;
}

/* The part of a file that the page cache holds, 0 to 1; -1 with errno. */
double kernel_resident(const char *path)
{
    double part = -1;
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) { return -1; }
    if (fstat(fd, &st) == 0 && st.st_size > 0) {
        size_t pages = (st.st_size + 4095) / 4096, held = 0;
        unsigned char *map = malloc(pages);
        void *at = mmap(NULL, st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (at != MAP_FAILED && mincore(at, st.st_size, map) == 0) {
            for (size_t i = 0; i < pages; i++) { held += map[i] & 1; }
            part = (double)held / pages;
        }
        if (at != MAP_FAILED) { munmap(at, st.st_size); }
        free(map);
    }
    close(fd);
    return part;
}
