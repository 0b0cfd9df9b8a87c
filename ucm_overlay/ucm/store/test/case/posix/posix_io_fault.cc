/**
 * MIT License
 *
 * Copyright (c) 2026 the UCM HiCache v2 contributors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to deal
 * in the Software without restriction, including without limitation the rights
 * to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
 * copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all
 * copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
 * SOFTWARE.
 * */
#include "posix_io_fault.h"
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdarg>
#include <cstdint>
#include <dlfcn.h>
#include <fcntl.h>
#include <memory>
#include <sys/stat.h>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace UC::Test::Detail {

namespace {

std::shared_ptr<IoFault::Hook> g_hook;
std::atomic<bool> g_enabled{false};
std::atomic<bool> g_namedFiles{false};
thread_local bool g_inHook = false;

int Ask(IoFault::Call& call)
{
    if (!g_enabled || g_inHook) { return 0; }
    auto hook = std::atomic_load(&g_hook);
    if (!hook) { return 0; }
    g_inHook = true;
    const auto eno = (*hook)(call);
    g_inHook = false;
    return eno;
}

std::string PathOf(int fd)
{
    char path[PATH_MAX];
    const auto link = "/proc/self/fd/" + std::to_string(fd);
    const auto n = readlink(link.c_str(), path, sizeof(path));
    return n > 0 ? std::string(path, n) : std::string{};
}

template <typename Fn>
Fn* Real(const char* name)
{
    return reinterpret_cast<Fn*>(dlsym(RTLD_NEXT, name));
}

int FailWith(int eno)
{
    errno = eno;
    return -1;
}

/** Shows the call to the hook, then moves at most `limit` bytes with a plain pread or pwrite. */
template <bool write>
ssize_t Move(int fd, const iovec* iov, int n, off_t offset)
{
    using VectorFn = ssize_t(int, const iovec*, int, off_t);
    static auto* real = Real<VectorFn>(write ? "pwritev" : "preadv");
    if (!g_enabled || g_inHook) { return real(fd, iov, n, offset); }
    IoFault::Call call{write ? IoFault::Op::WRITE : IoFault::Op::READ, PathOf(fd), offset,
                       SIZE_MAX};
    if (const auto eno = Ask(call)) { return FailWith(eno); }
    std::vector<iovec> part;
    for (int i = 0; i < n && call.limit > 0; i++) {
        part.push_back({iov[i].iov_base, std::min(iov[i].iov_len, call.limit)});
        call.limit -= part.back().iov_len;
    }
    return real(fd, part.data(), static_cast<int>(part.size()), offset);
}

template <typename Fn>
int OnPath(IoFault::Op op, const char* path, Fn&& go)
{
    if (g_enabled && !g_inHook) {
        IoFault::Call call{op, path, 0, 0};
        if (const auto eno = Ask(call)) { return FailWith(eno); }
    }
    return go();
}

int OnFd(const char* name, IoFault::Op op, int fd)
{
    int eno = 0;
    if (g_enabled && !g_inHook) {
        IoFault::Call call{op, PathOf(fd), 0, 0};
        eno = Ask(call);
    }
    // A failing close gives the descriptor back all the same.
    if (eno != 0 && op != IoFault::Op::CLOSE) { return FailWith(eno); }
    const auto ret = Real<int(int)>(name)(fd);
    return eno != 0 ? FailWith(eno) : ret;
}

}  // namespace

IoFault::IoFault(Hook hook)
{
    std::atomic_store(&g_hook, std::make_shared<Hook>(std::move(hook)));
    g_enabled = true;
}

IoFault::~IoFault()
{
    g_enabled = false;
    std::atomic_store(&g_hook, std::shared_ptr<Hook>{});
}

void IoFault::SleepMs(size_t ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

NamedFiles::NamedFiles() { g_namedFiles = true; }

NamedFiles::~NamedFiles() { g_namedFiles = false; }

}  // namespace UC::Test::Detail

using UC::Test::Detail::IoFault;
namespace Fault = UC::Test::Detail;

extern "C" {

int stat(const char* path, struct stat* st)
{
    static auto* real = Fault::Real<int(const char*, struct stat*)>("stat");
    return Fault::OnPath(IoFault::Op::STAT, path, [&] { return real(path, st); });
}
int lstat(const char* path, struct stat* st)
{
    static auto* real = Fault::Real<int(const char*, struct stat*)>("lstat");
    return Fault::OnPath(IoFault::Op::STAT, path, [&] { return real(path, st); });
}
int open(const char* path, int flags, ...)
{
    static auto* real = Fault::Real<int(const char*, int, ...)>("open");
    va_list args;
    va_start(args, flags);
    const auto unnamed = (flags & O_TMPFILE) == O_TMPFILE;
    const auto mode = (flags & O_CREAT) || unnamed ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (unnamed && Fault::g_namedFiles) { return Fault::FailWith(EOPNOTSUPP); }
    return Fault::OnPath(IoFault::Op::OPEN, path, [&] { return real(path, flags, mode); });
}
int rename(const char* from, const char* to) noexcept
{
    static auto* real = Fault::Real<int(const char*, const char*)>("rename");
    return Fault::OnPath(IoFault::Op::RENAME, to, [&] { return real(from, to); });
}
int linkat(int at, const char* from, int to, const char* name, int flags) noexcept
{
    static auto* real = Fault::Real<int(int, const char*, int, const char*, int)>("linkat");
    return Fault::OnPath(IoFault::Op::RENAME, name,
                         [&] { return real(at, from, to, name, flags); });
}
int close(int fd) { return Fault::OnFd("close", IoFault::Op::CLOSE, fd); }
int fsync(int fd) { return Fault::OnFd("fsync", IoFault::Op::SYNC, fd); }
int fdatasync(int fd) { return Fault::OnFd("fdatasync", IoFault::Op::SYNC, fd); }
ssize_t preadv(int fd, const iovec* iov, int n, off_t offset)
{
    return Fault::Move<false>(fd, iov, n, offset);
}
ssize_t pwritev(int fd, const iovec* iov, int n, off_t offset)
{
    return Fault::Move<true>(fd, iov, n, offset);
}
ssize_t pread(int fd, void* buffer, size_t size, off_t offset)
{
    const iovec iov{buffer, size};
    return Fault::Move<false>(fd, &iov, 1, offset);
}
ssize_t pwrite(int fd, const void* buffer, size_t size, off_t offset)
{
    const iovec iov{const_cast<void*>(buffer), size};
    return Fault::Move<true>(fd, &iov, 1, offset);
}
}
