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
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <sys/resource.h>
#include <sys/stat.h>
#include <thread>
#include <vector>
#include "detail/path_base.h"
#include "detail/types_helper.h"
#include "posix/cc/space_manager.h"
#include "posix_io_fault.h"

namespace fs = std::filesystem;

class UCPosixLookupRootTest : public UC::Test::Detail::PathBase {
protected:
    using BlockId = UC::Detail::BlockId;
    using IoFault = UC::Test::Detail::IoFault;
    using SpaceManager = UC::PosixStore::SpaceManager;

    static constexpr size_t kPays = 16;  // blocks a root from which on roots are opened
    static constexpr size_t kMany = 4 * kPays;

    void Setup(SpaceManager& spaceMgr, size_t nRoot, size_t concurrency = 16)
    {
        UC::PosixStore::Config config;
        config.deviceId = 0;
        config.blockSize = 1;
        config.dataDirShardBytes = 1;
        config.lookupConcurrency = concurrency;
        for (size_t i = 0; i < nRoot; i++) {
            roots_.push_back(Path() + std::to_string(i));
            fs::create_directory(roots_.back());
        }
        config.storageBackends = roots_;
        ASSERT_EQ(spaceMgr.Setup(config), UC::Status::OK());
    }
    /** Blocks, of which every other one is there, the first is not. */
    static std::vector<BlockId> Store(const SpaceManager& spaceMgr, size_t n = kMany)
    {
        std::vector<BlockId> blocks(n);
        for (size_t i = 0; i < n; i++) {
            blocks[i] = UC::Test::Detail::TypesHelper::MakeBlockIdRandomly();
            if (i % 2) { std::ofstream{File(spaceMgr, blocks[i])} << 'x'; }
        }
        return blocks;
    }
    static std::string File(const SpaceManager& spaceMgr, const BlockId& block)
    {
        return spaceMgr.GetLayout()->DataFilePath(block, false);
    }
    static std::vector<uint8_t> EveryOther(size_t n = kMany)
    {
        std::vector<uint8_t> founds(n);
        for (size_t i = 1; i < n; i += 2) { founds[i] = true; }
        return founds;
    }
    static std::vector<uint8_t> Lookup(SpaceManager& spaceMgr, const std::vector<BlockId>& blocks)
    {
        return spaceMgr.Lookup(blocks.data(), blocks.size()).Value();
    }
    static ptrdiff_t Descriptors()
    {
        return std::distance(fs::directory_iterator{"/proc/self/fd"}, {});
    }
    /** How many roots a call opens. */
    template <typename Call>
    size_t Opened(Call&& call)
    {
        std::atomic<size_t> opened{0};
        IoFault count{[&](IoFault::Call& io) {
            const auto root = [&](auto& path) { return io.path == path + "/"; };
            opened += std::any_of(roots_.begin(), roots_.end(), root);
            return 0;
        }};
        call();
        return opened;
    }
    std::vector<std::string> roots_;
};

TEST_F(UCPosixLookupRootTest, ManyBlocksAreFoundBelowTheOpenRoot)
{
    SpaceManager spaceMgr;
    Setup(spaceMgr, 1);
    const auto blocks = Store(spaceMgr);
    std::atomic<bool> first{true};
    IoFault fault{[&](IoFault::Call& call) {
        if (call.op == IoFault::Op::STAT && first.exchange(false)) {
            fs::rename(roots_[0], Path() + "away");
        }
        return 0;
    }};
    ASSERT_EQ(Lookup(spaceMgr, blocks), EveryOther());
}

TEST_F(UCPosixLookupRootTest, RootsAreOpenedWhereItPays)
{
    SpaceManager spaceMgr;
    Setup(spaceMgr, 3);
    const auto blocks = Store(spaceMgr, 3 * kPays);
    const auto few = std::vector<BlockId>(blocks.begin(), blocks.end() - 1);
    ASSERT_EQ(Opened([&] { ASSERT_EQ(Lookup(spaceMgr, few), EveryOther(few.size())); }), 0);
    ASSERT_EQ(Opened([&] { ASSERT_EQ(Lookup(spaceMgr, blocks), EveryOther(blocks.size())); }), 3);
}

TEST_F(UCPosixLookupRootTest, AShortPrefixOpensNone)
{
    SpaceManager spaceMgr;
    Setup(spaceMgr, 1);
    const auto blocks = Store(spaceMgr);
    for (const auto& block : blocks) { std::ofstream{File(spaceMgr, block)} << 'x'; }
    const auto prefix = [&] { return spaceMgr.LookupOnPrefix(blocks.data(), kMany).Value(); };
    ASSERT_EQ(Opened([&] { ASSERT_EQ(prefix(), kMany - 1); }), 1);
    fs::remove(File(spaceMgr, blocks[kPays - 1]));
    ASSERT_EQ(Opened([&] { ASSERT_EQ(prefix(), kPays - 2); }), 0);
}

TEST_F(UCPosixLookupRootTest, AnotherFolderInTheRootsPlaceIsSeen)
{
    SpaceManager spaceMgr;
    Setup(spaceMgr, 1);
    const auto blocks = Store(spaceMgr);
    const auto none = std::vector<uint8_t>(kMany);
    ASSERT_EQ(Lookup(spaceMgr, blocks), EveryOther());
    fs::rename(roots_[0], Path() + "away");
    ASSERT_EQ(Lookup(spaceMgr, blocks), none);
    fs::create_directory(roots_[0]);
    ASSERT_EQ(Lookup(spaceMgr, blocks), none);
    fs::remove(roots_[0]);
    fs::create_directory_symlink("away", roots_[0]);
    ASSERT_EQ(Lookup(spaceMgr, blocks), EveryOther());
}

TEST_F(UCPosixLookupRootTest, WholePathsServeWhereARootIsNotOpen)
{
    SpaceManager spaceMgr;
    Setup(spaceMgr, 3);
    const auto blocks = Store(spaceMgr);
    rlimit limit;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlimit none{0, limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const auto founds = Lookup(spaceMgr, blocks);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ASSERT_EQ(founds, EveryOther());
    IoFault fault{[&](IoFault::Call& call) { return call.path == roots_[1] + "/" ? EMFILE : 0; }};
    ASSERT_EQ(Lookup(spaceMgr, blocks), EveryOther());
}

TEST_F(UCPosixLookupRootTest, TheWholePathHasTheLastWord)
{
    SpaceManager spaceMgr;
    Setup(spaceMgr, 1);
    const auto blocks = Store(spaceMgr);
    IoFault fault{[&](IoFault::Call& call) {  // absolute: below the open root
        return call.op == IoFault::Op::STAT && call.path[0] == '/' ? ESTALE : 0;
    }};
    ASSERT_EQ(Lookup(spaceMgr, blocks), EveryOther());
}

TEST_F(UCPosixLookupRootTest, WhetherItCanBeReadIsAskedThereToo)
{
    if (geteuid() != 0) { GTEST_SKIP() << "runs as root, who reads what its mode forbids"; }
    SpaceManager spaceMgr;
    Setup(spaceMgr, 1);
    const auto blocks = Store(spaceMgr);
    for (size_t i = 1; i < kMany; i += 2) { chmod(File(spaceMgr, blocks[i]).c_str(), 0); }
    ASSERT_EQ(Lookup(spaceMgr, blocks), EveryOther());
}

TEST_F(UCPosixLookupRootTest, NothingStaysOpenForALateHelper)
{
    SpaceManager spaceMgr;
    Setup(spaceMgr, 2, 1);
    const auto blocks = Store(spaceMgr);
    std::atomic<bool> held{false}, over{false};
    thread_local bool caller = false;
    IoFault fault{[&](IoFault::Call& call) {
        if (call.op != IoFault::Op::STAT) { return 0; }
        IoFault::SleepMs(1);
        for (; !caller && !over; held = true) { IoFault::SleepMs(1); }
        return 0;
    }};
    caller = true;
    std::thread first{[&] {
        caller = true;
        while (!held) { EXPECT_EQ(Lookup(spaceMgr, blocks), EveryOther()); }
    }};
    while (!held) { IoFault::SleepMs(1); }
    const auto before = Descriptors();
    for (size_t i = 0; i < 5; i++) { EXPECT_EQ(Lookup(spaceMgr, blocks), EveryOther()); }
    EXPECT_EQ(Descriptors(), before);
    over = true;
    first.join();
}
