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
#include <fstream>
#include <set>
#include <sys/stat.h>
#include <unistd.h>
#include "detail/path_base.h"
#include "detail/types_helper.h"
#include "posix/cc/space_manager.h"
#include "posix_io_fault.h"

namespace {

using UC::Detail::BlockId;
using UC::Test::Detail::IoFault;
using UC::Test::Detail::TypesHelper;

constexpr size_t kBlockSize = 4096;

}  // namespace

class UCPosixLookupTest : public UC::Test::Detail::PathBase {
protected:
    void Setup(UC::PosixStore::SpaceManager& spaceMgr, size_t concurrency = 16)
    {
        UC::PosixStore::Config config;
        config.deviceId = 0;
        config.blockSize = kBlockSize;
        config.dataDirShardBytes = 1;
        config.lookupConcurrency = concurrency;
        config.storageBackends.push_back(Path());
        ASSERT_EQ(spaceMgr.Setup(config), UC::Status::OK());
    }
    static std::vector<BlockId> MakeBlocks(size_t n)
    {
        std::vector<BlockId> blocks(n);
        for (auto& block : blocks) { block = TypesHelper::MakeBlockIdRandomly(); }
        return blocks;
    }
    static std::string File(const UC::PosixStore::SpaceManager& spaceMgr, const BlockId& block)
    {
        return spaceMgr.GetLayout()->DataFilePath(block, false);
    }
    static void Store(const std::string& path, size_t size)
    {
        std::ofstream{path} << std::string(size, 'x');
    }
};

TEST_F(UCPosixLookupTest, AnySubsetIsAnsweredExactly)
{
    UC::PosixStore::SpaceManager spaceMgr;
    Setup(spaceMgr);
    for (const size_t n : {1, 2, 7, 64, 1500}) {
        const auto blocks = MakeBlocks(n);
        std::vector<uint8_t> expected(n);
        for (size_t i = 0; i < n; i++) {
            expected[i] = static_cast<uint8_t>(blocks[i][0]) % 3 == 0;
            if (expected[i]) { Store(File(spaceMgr, blocks[i]), kBlockSize); }
        }
        ASSERT_EQ(spaceMgr.Lookup(blocks.data(), n).Value(), expected);
    }
    ASSERT_TRUE(spaceMgr.Lookup(nullptr, 0).Value().empty());
    ASSERT_EQ(spaceMgr.LookupOnPrefix(nullptr, 0).Value(), -1);
}

TEST_F(UCPosixLookupTest, PrefixEndsAtTheFirstMiss)
{
    UC::PosixStore::SpaceManager spaceMgr;
    Setup(spaceMgr);
    const auto blocks = MakeBlocks(1000);
    for (const auto& block : blocks) { Store(File(spaceMgr, block), kBlockSize); }
    ASSERT_EQ(spaceMgr.LookupOnPrefix(blocks.data(), blocks.size()).Value(), 999);
    for (const ssize_t miss : {990, 500, 3, 0}) {
        unlink(File(spaceMgr, blocks[miss]).c_str());
        ASSERT_EQ(spaceMgr.LookupOnPrefix(blocks.data(), blocks.size()).Value(), miss - 1);
    }
}

TEST_F(UCPosixLookupTest, OnlyAWholeRegularFileIsABlock)
{
    UC::PosixStore::SpaceManager spaceMgr;
    Setup(spaceMgr);
    const auto blocks = MakeBlocks(6);
    Store(File(spaceMgr, blocks[0]), kBlockSize);
    Store(File(spaceMgr, blocks[1]), kBlockSize - 1);
    Store(File(spaceMgr, blocks[2]), kBlockSize + 1);
    Store(File(spaceMgr, blocks[3]), 0);
    ASSERT_EQ(mkdir(File(spaceMgr, blocks[4]).c_str(), 0755), 0);
    ASSERT_EQ(mkfifo(File(spaceMgr, blocks[5]).c_str(), 0644), 0);
    const std::vector<uint8_t> expected{true, false, false, false, false, false};
    ASSERT_EQ(spaceMgr.Lookup(blocks.data(), blocks.size()).Value(), expected);
    ASSERT_EQ(spaceMgr.LookupOnPrefix(blocks.data(), blocks.size()).Value(), 0);
}

TEST_F(UCPosixLookupTest, WritePermissionIsNotNeeded)
{
    UC::PosixStore::SpaceManager spaceMgr;
    Setup(spaceMgr);
    const auto blocks = MakeBlocks(2);
    const auto file = File(spaceMgr, blocks[0]);
    Store(file, kBlockSize);
    ASSERT_EQ(chmod(file.c_str(), 0444), 0);
    const auto root = geteuid() == 0;
    if (root && (seteuid(65534) != 0 || access(".", X_OK) != 0)) { GTEST_SKIP(); }
    const auto founds = spaceMgr.Lookup(blocks.data(), blocks.size()).Value();
    if (root) { ASSERT_EQ(seteuid(0), 0); }
    ASSERT_EQ(founds, (std::vector<uint8_t>{true, false}));
}

TEST_F(UCPosixLookupTest, SmallOnTheCallerSlowOnThePool)
{
    UC::PosixStore::SpaceManager spaceMgr;
    Setup(spaceMgr);
    const auto blocks = MakeBlocks(64);
    std::mutex mutex;
    std::set<std::thread::id> threads;
    size_t delayMs = 0;
    IoFault fault{[&](IoFault::Call& call) {
        if (call.op != IoFault::Op::STAT) { return 0; }
        IoFault::SleepMs(delayMs);
        std::lock_guard<std::mutex> lock{mutex};
        threads.insert(std::this_thread::get_id());
        return 0;
    }};
    spaceMgr.Lookup(blocks.data(), 1).Value();
    ASSERT_EQ(threads, std::set<std::thread::id>{std::this_thread::get_id()});
    delayMs = 5;
    spaceMgr.Lookup(blocks.data(), blocks.size()).Value();
    ASSERT_GT(threads.size(), 8);
}

TEST_F(UCPosixLookupTest, KeysAreNotReadAfterTheReturn)
{
    UC::PosixStore::SpaceManager spaceMgr;
    Setup(spaceMgr, 2);
    IoFault fault{[](IoFault::Call& call) {
        if (call.op == IoFault::Op::STAT) { IoFault::SleepMs(2); }
        return 0;
    }};
    for (size_t round = 0; round < 20; round++) {
        auto blocks = std::make_unique<std::vector<BlockId>>(MakeBlocks(8));
        if (round % 2) {
            ASSERT_EQ(spaceMgr.LookupOnPrefix(blocks->data(), blocks->size()).Value(), -1);
        } else {
            spaceMgr.Lookup(blocks->data(), blocks->size()).Value();
        }
        blocks.reset();  // what a sanitizer watches
    }
}
