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
#ifndef UNIFIEDCACHE_POSIX_STORE_CC_OPEN_FOLDERS_H
#define UNIFIEDCACHE_POSIX_STORE_CC_OPEN_FOLDERS_H

#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <vector>

namespace UC::PosixStore {

/**
 * @brief Folders that are open for a while: what lies below is found without the way there.
 *
 * For one call, since a path can mean something else in the next: folders are renamed and mounted.
 */
class OpenFolders {
public:
    OpenFolders() = default;
    ~OpenFolders()
    {
        for (const auto fd : fds_) {
            if (fd >= 0) { close(fd); }
        }
    }
    OpenFolders(const OpenFolders&) = delete;
    OpenFolders& operator=(const OpenFolders&) = delete;
    void Open(const std::string& path)
    {
        fds_.reserve(fds_.size() + 1);  // which can throw, and then nothing is open
        fds_.push_back(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    }
    /** The descriptor of a folder. AT_FDCWD where it is not open: a call needs the whole path. */
    int At(size_t number) const
    {
        const auto there = number < fds_.size() && fds_[number] >= 0;
        return there ? fds_[number] : AT_FDCWD;
    }

private:
    std::vector<int> fds_;
};

}  // namespace UC::PosixStore

#endif
