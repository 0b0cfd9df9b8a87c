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
#ifndef UNIFIEDCACHE_TEST_POSIX_GC_BASE_H
#define UNIFIEDCACHE_TEST_POSIX_GC_BASE_H

#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <unistd.h>
#include "posix_io_fault.h"
#include "posix_store_base.h"

namespace UC::Test::Detail {

/** Stores that collect, and files in the place of their blocks. */
class PosixGcBase : public PosixStoreBase {
protected:
    using Paths = std::vector<std::string>;

    /** Collects once a second, from `nBlock` blocks on, down to half of them. */
    UC::Detail::Dictionary MakeConfig(size_t nBlock, const Paths& backends = {}) const
    {
        constexpr double gb = 1 << 30;
        auto config = PosixStoreBase::MakeConfig();
        if (!backends.empty()) { config.Set("storage_backends", backends); }
        config.SetNumber("data_dir_shard_bytes", 0);
        config.SetNumber("posix_capacity_gb", 1);
        config.Set("posix_gc_trigger_threshold_ratio", nBlock * BlockSize() / gb);
        config.Set("posix_gc_recycle_percent", 0.5);
        config.SetNumber("posix_gc_check_interval_sec", 1);
        return config;
    }
    static std::string NameOf(const UC::Detail::BlockId& block)
    {
        return fmt::format("{:02x}", fmt::join(block, ""));
    }
    static std::string RandomName() { return NameOf(TypesHelper::MakeBlockIdRandomly()); }
    /** A file of `size` bytes that was changed `age` seconds ago. */
    static std::string Put(const std::string& path, size_t size, time_t age)
    {
        std::filesystem::create_directories(std::filesystem::path{path}.parent_path());
        std::ofstream{path}.put('x');
        EXPECT_EQ(truncate(path.c_str(), size), 0);
        SetAge(path, age);
        return path;
    }
    /** A block that a store keeps in the flat layout. */
    std::string PutBlock(const std::string& root, time_t age) const
    {
        return Put(root + "data/" + RandomName(), BlockSize(), age);
    }
    /** `n` blocks, the first one the oldest. */
    Paths PutBlocks(const std::string& root, size_t n, time_t youngest = 1000) const
    {
        Paths paths;
        for (auto i = n; i > 0; i--) { paths.push_back(PutBlock(root, youngest + 10 * i)); }
        return paths;
    }
    static void SetAge(const std::string& path, time_t age)
    {
        const auto then = time(nullptr) - age;
        const timespec times[] = {{then, 0}, {then, 0}};
        EXPECT_EQ(utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
    }
    static time_t AgeOf(const std::string& path)
    {
        struct stat st;
        return lstat(path.c_str(), &st) == 0 ? time(nullptr) - st.st_mtime : -1;
    }
    static bool There(const std::string& path) { return AgeOf(path) >= 0; }
    static size_t CountThere(const Paths& paths)
    {
        return std::count_if(paths.begin(), paths.end(), There);
    }
    /** The oldest ones are gone, the `n` youngest are there. */
    static bool YoungestAreThere(const Paths& oldestFirst, size_t n)
    {
        return CountThere({oldestFirst.end() - n, oldestFirst.end()}) == n &&
               CountThere(oldestFirst) == n;
    }
    template <typename Fn>
    static bool Soon(Fn&& condition, size_t ms = 5000)
    {
        for (; ms >= 10; ms -= 10, IoFault::SleepMs(10)) {
            if (condition()) { return true; }
        }
        return condition();
    }
    /** Long enough for another check. */
    static void AwaitCheck() { IoFault::SleepMs(1500); }
};

}  // namespace UC::Test::Detail

#endif
