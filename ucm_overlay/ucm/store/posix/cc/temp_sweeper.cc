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
#include "temp_sweeper.h"
#include <algorithm>
#include <ctime>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include "logger/logger.h"

namespace UC::PosixStore {

TempSweeper::~TempSweeper()
{
    stop_ = true;
    if (worker_.joinable()) { worker_.join(); }
}

Status TempSweeper::Start(std::vector<std::string> folders, size_t timeoutMs)
{
    self_ = TempOwner::Self();
    maxAgeSec_ = std::max<size_t>(3600, timeoutMs / 1000);
    try {
        worker_ = std::thread{[this, folders = std::move(folders)] {
            for (const auto& folder : folders) {
                const auto removed = Sweep(folder);
                if (removed > 0) { UC_INFO("Removed {} old files from {}.", removed, folder); }
            }
        }};
    } catch (const std::exception& e) {
        return Status::Error(fmt::format("failed to start the temporary sweeper: {}", e.what()));
    }
    return Status::OK();
}

size_t TempSweeper::Sweep(const std::string& folder) const
{
    // A link in its place may name anybody's folder.
    const auto fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    auto dir = fd < 0 ? nullptr : fdopendir(fd);
    if (!dir) {
        if (fd >= 0) { close(fd); }
        return 0;
    }
    size_t removed = 0;
    const auto now = time(nullptr);
    while (auto entry = stop_ ? nullptr : readdir(dir)) {
        struct stat st;
        if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) { continue; }
        if (S_ISDIR(st.st_mode)) { continue; }
        const auto old = now - st.st_mtime > static_cast<time_t>(maxAgeSec_);
        if (!old && !TempOwner::Parse(entry->d_name).Dead(self_)) { continue; }
        removed += unlinkat(dirfd(dir), entry->d_name, 0) == 0;
    }
    closedir(dir);
    return removed;
}

}  // namespace UC::PosixStore
