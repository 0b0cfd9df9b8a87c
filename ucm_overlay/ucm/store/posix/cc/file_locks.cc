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
#include "file_locks.h"
#include <algorithm>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "posix_file.h"

namespace UC::PosixStore {

Status FileLocks::Acquire(std::vector<std::string> paths)
{
    if (Held()) { return Status::OK(); }
    Release();
    // In one order everywhere, so that of two who want the same files one gets all.
    std::sort(paths.begin(), paths.end());
    for (const auto& path : paths) {
        auto s = Lock(path);
        if (s.Success()) { continue; }
        Release();
        return s;
    }
    return Status::OK();
}

/** Under another name, too: a second handle would be kept out by the first one's lock. */
bool FileLocks::Has(int fd) const
{
    struct stat st, own;
    return fstat(fd, &st) == 0 && std::any_of(handles_.begin(), handles_.end(), [&](int handle) {
               return fstat(handle, &own) == 0 && own.st_dev == st.st_dev &&
                      own.st_ino == st.st_ino;
           });
}

/** A lock on a file that somebody has removed keeps nobody out. */
bool FileLocks::Held() const
{
    struct stat st;
    return !handles_.empty() && std::all_of(handles_.begin(), handles_.end(), [&](int fd) {
        return fstat(fd, &st) == 0 && st.st_nlink > 0;
    });
}

Status FileLocks::Lock(const std::string& path)
{
    constexpr mode_t mode = 0660;  // as for blocks: processes of the group share a root
    const auto fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, mode);
    if (fd < 0) { return OsError("open", path, errno); }
    if (Has(fd)) {
        close(fd);
        return Status::OK();
    }
    fchmod(fd, mode);  // whatever the umask; fails where it is another user's, who has done it
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
        handles_.push_back(fd);
        return Status::OK();
    }
    const auto eno = errno;
    close(fd);
    return eno == EWOULDBLOCK ? Status::DuplicateKey() : OsError("flock", path, eno);
}

void FileLocks::Release()
{
    for (const auto fd : handles_) {
        flock(fd, LOCK_UN);  // a fork may still have it open
        close(fd);
    }
    handles_.clear();
}

}  // namespace UC::PosixStore
