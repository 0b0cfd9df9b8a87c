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
#include <climits>
#include <dlfcn.h>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

static std::string PathOf(int fd)
{
    char path[PATH_MAX];
    const auto link = "/proc/self/fd/" + std::to_string(fd);
    const auto n = readlink(link.c_str(), path, sizeof(path));
    return {path, n < 0 ? 0 : static_cast<size_t>(n)};
}

/**
 * Before libc's, as the calls in posix_io_fault.h: a hook is shown an lstat of the whole path, for
 * names below folders that are only opened to look there.
 */
extern "C" int fstatat(int at, const char* path, struct stat* st, int flags)
{
    using Fn = int(int, const char*, struct stat*, int);
    static auto* real = reinterpret_cast<Fn*>(dlsym(RTLD_NEXT, "fstatat"));
    if (flags != AT_SYMLINK_NOFOLLOW) { return real(at, path, st, flags); }
    if (at == AT_FDCWD) { return lstat(path, st); }
    if (fcntl(at, F_GETFL) & O_PATH) {
        const auto whole = PathOf(at) + '/' + path;
        if (lstat(whole.c_str(), st) != 0) { return -1; }
    }
    return real(at, path, st, flags);
}
