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
#ifndef UNIFIEDCACHE_TEST_POSIX_IO_FAULT_H
#define UNIFIEDCACHE_TEST_POSIX_IO_FAULT_H

#include <functional>
#include <string>
#include <sys/types.h>

namespace UC::Test::Detail {

/**
 * @brief Faults that cannot be made for real: this executable's own stat, lstat, open, pread,
 *        pwrite, preadv, pwritev, fsync, fdatasync, close, rename and linkat come before those
 *        of libc.
 *
 * While an IoFault lives, each of these calls is shown to its hook first, on the calling thread.
 */
class IoFault {
public:
    enum class Op { STAT, OPEN, READ, WRITE, SYNC, CLOSE, RENAME };
    struct Call {
        Op op;
        std::string path;  // of the file, or the new name for RENAME, which linkat is too
        off_t offset;      // READ and WRITE only
        size_t limit;      // bytes to move at most; the hook may lower it
    };
    /** Returns the errno to fail with, or 0 to go on; may sleep. */
    using Hook = std::function<int(Call&)>;

    explicit IoFault(Hook hook);
    ~IoFault();
    IoFault(const IoFault&) = delete;
    IoFault& operator=(const IoFault&) = delete;

    static void SleepMs(size_t ms);
};

/** While it lives no file can be opened without a name, as on a network file system. */
class NamedFiles {
public:
    NamedFiles();
    ~NamedFiles();
    NamedFiles(const NamedFiles&) = delete;
    NamedFiles& operator=(const NamedFiles&) = delete;
};

}  // namespace UC::Test::Detail

#endif
