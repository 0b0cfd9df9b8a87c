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
#include "block_collector.h"
#include <algorithm>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string_view>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include "posix_file.h"

namespace UC::PosixStore {

using Directory = std::unique_ptr<DIR, int (*)(DIR*)>;

/** With a slash at its end `path` may be a link: that is a root, which the operator named. */
static Directory OpenDirectory(const std::string& path)
{
    const auto fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const auto dir = fd < 0 ? nullptr : fdopendir(fd);
    if (!dir && fd >= 0) { close(fd); }
    return {dir, closedir};
}

static bool IsHex(std::string_view text)
{
    return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

struct BlockCollector::Folder {
    std::string path;
    std::string prefix;  // of the names of its blocks
    size_t blockSize;
};

static size_t LimitOf(const Config& config)
{
    constexpr double gb = 1 << 30;
    constexpr double max = 1e18;  // more than any file system holds
    return static_cast<size_t>(
        std::min(config.posixCapacityGb * gb * config.posixGcTriggerThresholdRatio, max));
}

BlockCollector::BlockCollector(const Config& config)
    : limit_{LimitOf(config)},
      goal_{static_cast<size_t>(limit_ * (1 - config.posixGcRecyclePercent))},
      maxPerFolder_{config.posixGcMaxRecycleCountPerShard},
      sampleRatio_{config.posixGcShardSampleRatio},
      nThread_{config.posixGcConcurrency},
      tempAge_{static_cast<time_t>(std::max<size_t>(3600, config.timeoutMs / 1000))}
{
}

BlockCollector::Report BlockCollector::Collect(const Roots& roots)
{
    Report report;
    Folders all;
    std::vector<Folders> each;
    std::set<std::pair<dev_t, ino_t>> known;
    for (const auto& root : roots) {
        struct stat st;  // two names may lead to one folder
        if (stat(root.path.c_str(), &st) != 0) { continue; }
        if (!known.emplace(st.st_dev, st.st_ino).second) { continue; }
        each.push_back(FoldersOf(root));
        all.insert(all.end(), each.back().begin(), each.back().end());
    }
    if (!AboutFull(each)) { return report; }
    for (auto more = true; more && !stop_;) {
        const auto usage = Measure(all);
        report.heldBytes = std::max(report.heldBytes, usage.bytes);
        if (usage.bytes < limit_) { break; }
        const auto before = report.removedBlocks;
        more = Remove(all, Oldest(usage), report) && report.removedBlocks > before;
    }
    return report;
}

/** Whatever their depth is: of another depth are those that a former setting left behind. */
BlockCollector::Folders BlockCollector::FoldersOf(const BlockRoot& root)
{
    constexpr size_t maxDigits = 5;
    Folders folders;
    const auto dir = OpenDirectory(root.path);
    while (auto entry = dir ? readdir(dir.get()) : nullptr) {
        const std::string name{entry->d_name};
        const auto flat = name == "data";
        if (!flat && (name.size() > maxDigits || !IsHex(name))) { continue; }
        folders.push_back({root.path + name, flat ? "" : name, root.blockSize});
    }
    return folders;
}

template <typename Fn>
void BlockCollector::InParallel(const Folders& folders, Fn&& fn) const
{
    std::atomic<size_t> next{0};
    const auto work = [&] {
        for (size_t i; !stop_ && (i = next.fetch_add(1)) < folders.size();) { fn(folders[i]); }
    };
    std::vector<std::thread> helpers;
    try {
        const auto n = std::min(nThread_, folders.size());
        while (helpers.size() + 1 < n) { helpers.emplace_back(work); }
    } catch (const std::system_error&) {
        // Fewer do as well.
    }
    work();
    for (auto& helper : helpers) { helper.join(); }
}

template <typename Fn>
void BlockCollector::ForEachBlock(const Folder& folder, Fn&& fn) const
{
    constexpr size_t nameSize = 32;
    const auto oldTemp = time(nullptr) - tempAge_;
    const auto dir = OpenDirectory(folder.path);
    const auto fd = dir ? dirfd(dir.get()) : -1;
    while (auto entry = dir && !stop_ ? readdir(dir.get()) : nullptr) {
        const std::string_view name{entry->d_name};
        const auto temp = name.size() == nameSize + 4 && name.substr(nameSize) == ".tmp";
        if ((name.size() != nameSize && !temp) || !IsHex(name.substr(0, nameSize))) { continue; }
        if (name.substr(0, folder.prefix.size()) != folder.prefix) { continue; }
        struct stat st;
        if (fstatat(fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) { continue; }
        if (!S_ISREG(st.st_mode)) { continue; }
        if (temp) {
            if (st.st_mtime < oldTemp) { unlinkat(fd, entry->d_name, 0); }
        } else if (folder.blockSize == 0 || static_cast<size_t>(st.st_size) == folder.blockSize) {
            fn(fd, entry->d_name, st);
        }
    }
}

/** Judged by some of the folders, root by root, as blocks of roots differ in size. */
bool BlockCollector::AboutFull(const std::vector<Folders>& roots) const
{
    constexpr double minSample = 16;
    static thread_local std::mt19937 random{std::random_device{}()};
    double bytes = 0;
    for (auto folders : roots) {
        const auto n = static_cast<double>(folders.size());
        const auto sample = std::min(n, std::max(minSample, n * sampleRatio_));
        std::shuffle(folders.begin(), folders.end(), random);
        folders.resize(static_cast<size_t>(sample));
        if (!folders.empty()) { bytes += Measure(folders).bytes * (n / folders.size()); }
    }
    return bytes >= limit_;
}

BlockCollector::Usage BlockCollector::Measure(const Folders& folders) const
{
    Usage total;
    std::mutex mutex;
    InParallel(folders, [&](const Folder& folder) {
        std::map<time_t, size_t> found;
        ForEachBlock(folder, [&](int, const char*, const struct stat& st) {
            found[st.st_mtime] += st.st_size;
        });
        std::lock_guard<std::mutex> lock{mutex};
        for (const auto& [time, bytes] : found) {
            total.bytes += bytes;
            total.bytesByTime[time] += bytes;
        }
    });
    return total;
}

BlockCollector::Cut BlockCollector::Oldest(const Usage& usage) const
{
    auto left = usage.bytes - std::min(usage.bytes, goal_);
    for (const auto& [time, bytes] : usage.bytesByTime) {
        if (bytes >= left) { return {time, left}; }
        left -= bytes;
    }
    return {};
}

bool BlockCollector::Remove(const Folders& folders, const Cut& cut, Report& report) const
{
    std::atomic<bool> more{false};
    std::atomic<int64_t> equallyOld{static_cast<int64_t>(cut.bytes)};
    std::mutex mutex;
    InParallel(folders, [&](const Folder& folder) {
        Report found;
        ForEachBlock(folder, [&](int fd, const char* name, const struct stat& st) {
            if (st.st_mtime > cut.time) { return; }
            if (found.removedBlocks == maxPerFolder_) {
                more = true;
                return;
            }
            if (st.st_mtime == cut.time && equallyOld.fetch_sub(st.st_size) <= 0) { return; }
            if (unlinkat(fd, name, 0) == 0) {
                found.removedBlocks++;
                found.removedBytes += st.st_size;
            } else if (const auto eno = errno; eno != ENOENT && found.failures++ == 0) {
                found.failure = OsError("unlink", folder.path + "/" + name, eno).ToString();
            }
        });
        std::lock_guard<std::mutex> lock{mutex};
        if (report.failures == 0) { report.failure = std::move(found.failure); }
        report.failures += found.failures;
        report.removedBlocks += found.removedBlocks;
        report.removedBytes += found.removedBytes;
    });
    return more;
}

}  // namespace UC::PosixStore
