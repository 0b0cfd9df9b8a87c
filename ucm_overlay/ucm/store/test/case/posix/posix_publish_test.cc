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
#include <dirent.h>
#include <fstream>
#include <mutex>
#include <set>
#include <sstream>
#include <sys/resource.h>
#include <thread>
#include <unistd.h>
#include "posix/cc/space_layout.h"
#include "posix_io_fault.h"
#include "posix_store_base.h"

using UC::Test::Detail::HostPages;
using UC::Test::Detail::IoFault;
using UC::Test::Detail::NamedFiles;

class UCPosixPublishTest : public UC::Test::Detail::PosixStoreBase {
protected:
    size_t Temporaries() const
    {
        size_t n = 0;
        auto dir = opendir((Path() + ".tmp").c_str());
        if (!dir) { return 0; }
        while (auto entry = readdir(dir)) { n += entry->d_name[0] != '.'; }
        closedir(dir);
        return n;
    }
    std::string Content(const UC::Detail::BlockId& block) const
    {
        std::ifstream file{File(block)};
        std::stringstream text;
        text << file.rdbuf();
        return text.str();
    }
    ino_t Inode(const UC::Detail::BlockId& block) const
    {
        struct stat st{};
        ::stat(File(block).c_str(), &st);
        return st.st_ino;
    }
    /** Runs `test` with temporaries as they come here, and with those that have names. */
    template <typename Test>
    static void EitherWay(Test&& test)
    {
        test();
        NamedFiles named;
        test();
    }
    static UC::Detail::TaskDesc Take(const UC::Detail::TaskDesc& desc, std::vector<size_t> rows)
    {
        UC::Detail::TaskDesc part;
        for (auto row : rows) { part.push_back(desc[row]); }
        return part;
    }
};

TEST_F(UCPosixPublishTest, AnyFailureLeavesNothing)
{
    nTensor_ = 2;
    using Op = IoFault::Op;
    for (const std::string sync : {"none", "full"}) {
        auto config = MakeConfig();
        config.Set("posix_sync", sync);
        auto store = MakeStore(config);
        for (const auto op : {Op::OPEN, Op::WRITE, Op::SYNC, Op::CLOSE, Op::RENAME}) {
            if (op == Op::SYNC && sync == "none") { continue; }
            for (const int eno : {EIO, ENOSPC, EACCES}) {
                const auto blocks = MakeBlocks(1);
                HostPages from{1, BlockSize(), 7};
                {
                    IoFault fault{[&](IoFault::Call& call) { return call.op == op ? eno : 0; }};
                    ASSERT_TRUE(Dump(*store, blocks, from).Failure());
                }
                ASSERT_EQ(store->Lookup(blocks.data(), 1).Value()[0], false);
                ASSERT_EQ(FileSize(blocks[0]), -1);
                ASSERT_EQ(Temporaries(), 0);
                ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
                ASSERT_EQ(Content(blocks[0]), from.Bytes());
            }
        }
    }
}

TEST_F(UCPosixPublishTest, ANameThatMayBeLostIsTakenBack)
{
    auto config = MakeConfig();
    config.Set("posix_sync", std::string("full"));
    auto store = MakeStore(config);
    const auto blocks = MakeBlocks(1);
    HostPages from{1, BlockSize()};
    std::atomic<size_t> syncs{0};
    IoFault fault{[&](IoFault::Call& call) {
        return call.op == IoFault::Op::SYNC && ++syncs == 2 ? EIO : 0;  // the folder's
    }};
    ASSERT_TRUE(Dump(*store, blocks, from).Failure());
    ASSERT_EQ(syncs, 2);
    ASSERT_EQ(FileSize(blocks[0]), -1);
}

TEST_F(UCPosixPublishTest, AFlushedTemporaryHasAName)
{
    for (const std::string sync : {"data", "full"}) {
        auto config = MakeConfig();
        config.Set("posix_sync", sync);
        auto store = MakeStore(config);
        HostPages from{1, BlockSize()};
        ASSERT_EQ(Dump(*store, MakeBlocks(1), from), UC::Status::OK());
        ASSERT_EQ(rmdir((Path() + ".tmp").c_str()), 0);
    }
}

TEST_F(UCPosixPublishTest, ATemporaryOfOneShardHasNoName)
{
    if (!HasUnnamedFiles()) { GTEST_SKIP() << "runs on ext4, xfs, btrfs and tmpfs"; }
    auto store = MakeStore();
    const auto blocks = MakeBlocks(8);
    HostPages from{8, BlockSize()};
    ASSERT_EQ(Dump(*store, blocks, from.Number()), UC::Status::OK());
    ASSERT_NE(access((Path() + ".tmp").c_str(), F_OK), 0);
    for (size_t i = 0; i < 8; i++) {
        ASSERT_EQ(Content(blocks[i]), from.Bytes().substr(i * BlockSize(), BlockSize()));
    }
    NamedFiles named;
    ASSERT_EQ(Dump(*store, MakeBlocks(8), from), UC::Status::OK());
    ASSERT_EQ(access((Path() + ".tmp").c_str(), F_OK), 0);
}

TEST_F(UCPosixPublishTest, WhereALinkIsRefusedTheNextTemporaryHasAName)
{
    if (!HasUnnamedFiles()) { GTEST_SKIP() << "runs on ext4, xfs, btrfs and tmpfs"; }
    for (const int eno : {EOVERFLOW, ENOENT}) {
        auto store = MakeStore();
        const auto blocks = MakeBlocks(2);
        HostPages from{1, BlockSize()};
        IoFault fault{[&](IoFault::Call& call) {
            const auto named = access((Path() + ".tmp").c_str(), F_OK) == 0;
            return call.op == IoFault::Op::RENAME && !named ? eno : 0;
        }};
        ASSERT_TRUE(Dump(*store, {blocks[0]}, from).Failure());
        ASSERT_EQ(Dump(*store, {blocks[1]}, from), UC::Status::OK());
        ASSERT_EQ(Content(blocks[1]), from.Bytes());
        ASSERT_EQ(rmdir((Path() + ".tmp").c_str()), 0);
    }
}

TEST_F(UCPosixPublishTest, AnUnprivilegedWriterOfAnOldKernelLinksByItsDescriptorsPath)
{
    if (!HasUnnamedFiles()) { GTEST_SKIP() << "runs on ext4, xfs, btrfs and tmpfs"; }
    auto store = MakeStore();
    const auto blocks = MakeBlocks(3);
    HostPages from{3, BlockSize()};
    std::set<std::string> refused;
    std::mutex mutex;
    IoFault fault{[&](IoFault::Call& call) {
        if (call.op != IoFault::Op::RENAME) { return 0; }
        std::lock_guard<std::mutex> lock{mutex};
        return refused.insert(call.path).second ? ENOENT : 0;
    }};
    ASSERT_EQ(Dump(*store, blocks, from.Number()), UC::Status::OK());
    ASSERT_EQ(refused.size(), 3);
    ASSERT_EQ(Content(blocks[2]), from.Bytes().substr(2 * BlockSize()));
    ASSERT_NE(access((Path() + ".tmp").c_str(), F_OK), 0);
}

TEST_F(UCPosixPublishTest, WhatCannotBeReplacedStaysAndLeavesNothing)
{
    auto unnamed = HasUnnamedFiles();
    EitherWay([&] {
        auto store = MakeStore();
        const auto blocks = MakeBlocks(2);
        HostPages from{1, BlockSize()};
        ASSERT_EQ(mkdir(File(blocks[0]).c_str(), 0755), 0);
        std::ofstream{File(blocks[0]) + "/precious"} << "x";
        ASSERT_TRUE(Dump(*store, {blocks[0]}, from).Failure());
        ASSERT_EQ(access((File(blocks[0]) + "/precious").c_str(), F_OK), 0);
        ASSERT_EQ(rmdir((Path() + ".tmp").c_str()), 0);
        // One bad file does not change how others are written.
        ASSERT_EQ(Dump(*store, {blocks[1]}, from), UC::Status::OK());
        ASSERT_EQ(access((Path() + ".tmp").c_str(), F_OK) != 0, unnamed);
        unnamed = false;
    });
}

TEST_F(UCPosixPublishTest, ADumpWithoutDescriptorsKeepsNone)
{
    auto store = MakeStore();
    HostPages from{1, BlockSize()};
    ASSERT_EQ(Dump(*store, MakeBlocks(1), from), UC::Status::OK());
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (const rlim_t left : {0, 1}) {
        const auto next = dup(0);
        close(next);
        auto few = before;
        few.rlim_cur = next + left;
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
        const auto s = Dump(*store, MakeBlocks(1), from);
        ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
        if (left == 0 || HasUnnamedFiles()) { ASSERT_TRUE(s.Failure()); }
        const auto after = dup(0);
        close(after);
        ASSERT_EQ(after, next);
    }
}

TEST_F(UCPosixPublishTest, DataLostAtCloseIsNotPublished)
{
    {
        auto store = MakeStore();
        const auto blocks = MakeBlocks(1);
        HostPages from{1, BlockSize()};
        IoFault fault{[](IoFault::Call& call) { return call.op == IoFault::Op::CLOSE ? EIO : 0; }};
        ASSERT_TRUE(Dump(*store, blocks, from).Failure());
        ASSERT_EQ(FileSize(blocks[0]), -1);
    }
    NamedFiles named;
    auto store = MakeStore();
    for (const int eno : {EIO, 0}) {
        const auto blocks = MakeBlocks(1);
        HostPages from{1, BlockSize()};
        IoFault fault{[&](IoFault::Call& call) {
            if (call.op != IoFault::Op::CLOSE) { return 0; }
            EXPECT_EQ(truncate(call.path.c_str(), BlockSize() / 2), 0);
            return eno;
        }};
        ASSERT_TRUE(Dump(*store, blocks, from).Failure());
        ASSERT_EQ(FileSize(blocks[0]), -1);
        ASSERT_EQ(Temporaries(), 0);
    }
}

TEST_F(UCPosixPublishTest, WritersOfOneKeyLeaveOneWritersBytes)
{
    tensorSize_ = 65536;
    nTensor_ = 4;
    EitherWay([&] {
        auto store1 = MakeStore(), store2 = MakeStore();
        for (size_t round = 0; round < 20; round++) {
            const auto blocks = MakeBlocks(1);
            std::vector<std::thread> writers;
            for (uint8_t fill = 1; fill <= 6; fill++) {
                writers.emplace_back([&, fill] {
                    HostPages from{1, BlockSize(), fill};
                    auto& store = fill % 2 ? *store1 : *store2;
                    ASSERT_EQ(Dump(store, blocks, from), UC::Status::OK());
                });
            }
            for (auto& writer : writers) { writer.join(); }
            const auto content = Content(blocks[0]);
            ASSERT_EQ(content, std::string(BlockSize(), content[0]));
        }
        ASSERT_EQ(Temporaries(), 0);
    });
}

TEST_F(UCPosixPublishTest, SameKeyTwiceInABatch)
{
    tensorSize_ = 65536;
    for (const size_t nShard : {1, 4}) {
        nShard_ = nShard;
        auto store = MakeStore();
        for (size_t round = 0; round < 10; round++) {
            auto blocks = MakeBlocks(1);
            HostPages a{1, BlockSize(), 1}, b{1, BlockSize(), 2};
            auto desc = MakeDesc(blocks, a);
            for (auto& shard : MakeDesc(blocks, b)) { desc.push_back(shard); }
            std::rotate(desc.begin(), desc.begin() + round % desc.size(), desc.end());
            ASSERT_EQ(store->Wait(store->Dump(desc).Value()), UC::Status::OK());
            const auto content = Content(blocks[0]);
            ASSERT_EQ(content.size(), BlockSize());
            if (nShard == 1) { ASSERT_EQ(content, std::string(BlockSize(), content[0])); }
        }
        ASSERT_EQ(Temporaries(), 0);
    }
}

TEST_F(UCPosixPublishTest, ShardsInAnyOrder)
{
    nShard_ = 4;
    auto store = MakeStore();
    std::vector<size_t> order{0, 1, 2, 3};
    do {
        const auto blocks = MakeBlocks(2);
        HostPages from{2, BlockSize()}, to{2, BlockSize()};
        const auto desc = MakeDesc(blocks, from.Number());
        const auto first = Take(desc, order);
        ASSERT_EQ(store->Wait(store->Dump(first).Value()), UC::Status::OK());
        auto second = first;  // one shard of the second block fails
        for (size_t i = 0; i < 4; i++) { second[i] = desc[4 + order[i]]; }
        second[order[0]].addrs[0] = reinterpret_cast<void*>(8);
        ASSERT_TRUE(store->Wait(store->Dump(second).Value()).Failure());
        ASSERT_EQ(store->Lookup(blocks.data(), 2).Value(), (std::vector<uint8_t>{true, false}));
        ASSERT_EQ(FileSize(blocks[1]), -1);
        ASSERT_EQ(Temporaries(), 0);
        ASSERT_EQ(Load(*store, {blocks[0]}, to), UC::Status::OK());
        ASSERT_EQ(to.Bytes().substr(0, BlockSize()), from.Bytes().substr(0, BlockSize()));
    } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(UCPosixPublishTest, ShardsOfSeveralTasks)
{
    nShard_ = 3;
    auto store = MakeStore();
    const auto blocks = MakeBlocks(2);
    HostPages from{2, BlockSize()};
    const auto desc = MakeDesc(blocks, from.Number());
    for (const auto& rows : std::vector<std::vector<size_t>>{{2, 5}, {0, 3}, {0}, {1}}) {
        ASSERT_EQ(FileSize(blocks[0]), -1);
        ASSERT_EQ(store->Wait(store->Dump(Take(desc, rows)).Value()), UC::Status::OK());
    }
    ASSERT_EQ(Content(blocks[0]), from.Bytes().substr(0, BlockSize()));
    ASSERT_EQ(FileSize(blocks[1]), -1);
    ASSERT_EQ(Temporaries(), 1);
    auto broken = Take(desc, {4});
    broken[0].addrs[0] = reinterpret_cast<void*>(8);
    ASSERT_TRUE(store->Wait(store->Dump(broken).Value()).Failure());
    ASSERT_EQ(Temporaries(), 0);
    ASSERT_EQ(store->Wait(store->Dump(Take(desc, {4})).Value()), UC::Status::OK());
    store.reset();
    ASSERT_EQ(Temporaries(), 0);
    ASSERT_EQ(FileSize(blocks[1]), -1);
}

TEST_F(UCPosixPublishTest, AWholeBlockIsKept)
{
    EitherWay([&] {
        auto store = MakeStore();
        const auto blocks = MakeBlocks(1);
        HostPages a{1, BlockSize(), 1}, b{1, BlockSize(), 2};
        ASSERT_EQ(Dump(*store, blocks, a), UC::Status::OK());
        const auto inode = Inode(blocks[0]);
        ASSERT_EQ(Dump(*store, blocks, b), UC::Status::OK());
        ASSERT_EQ(Inode(blocks[0]), inode);
        ASSERT_EQ(Content(blocks[0]), a.Bytes());
        ASSERT_EQ(truncate(File(blocks[0]).c_str(), 10), 0);
        ASSERT_EQ(Dump(*store, blocks, b), UC::Status::OK());
        ASSERT_EQ(Content(blocks[0]), b.Bytes());
        ASSERT_EQ(Temporaries(), 0);
    });
}

TEST_F(UCPosixPublishTest, OldTemporariesAreNotUsed)
{
    auto store = MakeStore();
    const auto blocks = MakeBlocks(1);
    HostPages from{1, BlockSize(), 1};
    std::ofstream{File(blocks[0]) + ".tmp"} << std::string(20000, 'x');
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    ASSERT_EQ(Content(blocks[0]), from.Bytes());
}

TEST_F(UCPosixPublishTest, SyncModes)
{
    HostPages from{1, BlockSize()};
    for (const auto& [mode, expected] :
         std::vector<std::pair<std::string, size_t>>{{"none", 0}, {"data", 1}, {"full", 2}}) {
        auto config = MakeConfig();
        config.Set("posix_sync", mode);
        auto store = MakeStore(config);
        std::atomic<size_t> calls{0};
        IoFault fault{[&](IoFault::Call& call) {
            calls += call.op == IoFault::Op::SYNC;
            return 0;
        }};
        ASSERT_EQ(Dump(*store, MakeBlocks(1), from), UC::Status::OK());
        ASSERT_EQ(calls, expected);
    }
    auto config = MakeConfig();
    config.Set("posix_sync", std::string("often"));
    std::unique_ptr<UC::StoreV1> store{MakePosixStore()};
    ASSERT_EQ(store->Setup(config), UC::Status::InvalidParam());
}

TEST_F(UCPosixPublishTest, ALostAnswerToARenameIsNoFailure)
{
    EitherWay([&] {
        auto store = MakeStore();
        const auto blocks = MakeBlocks(1);
        HostPages from{1, BlockSize()};
        IoFault fault{[&](IoFault::Call& call) {
            if (call.op != IoFault::Op::RENAME) { return 0; }
            std::ofstream{call.path} << from.Bytes();
            return ENOENT;
        }};
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
        ASSERT_EQ(Temporaries(), 0);
    });
}

TEST_F(UCPosixPublishTest, BlocksAndTemporariesLieOnTheBackendOfTheirHash)
{
    const auto second = Path() + "second/";
    std::vector<std::string> backends{Path(), second};
    UC::PosixStore::Config layoutConfig;
    layoutConfig.dataDirShardBytes = 1;
    layoutConfig.storageBackends = {second};
    ASSERT_EQ(mkdir(second.c_str(), 0755), 0);
    UC::PosixStore::SpaceLayout layout;
    ASSERT_TRUE(layout.Setup(layoutConfig).Success());
    NamedFiles named;
    auto config = MakeConfig();
    config.Set("storage_backends", backends);
    auto store = MakeStore(config);
    const auto blocks = MakeBlocks(16);
    HostPages from{blocks.size(), BlockSize()};
    std::atomic<size_t> strays{0};
    IoFault fault{[&](IoFault::Call& call) {
        const auto temp = call.path.find("/.tmp/") != std::string::npos;
        if (call.op != IoFault::Op::CLOSE || !temp) { return 0; }
        for (const auto& block : blocks) {
            if (call.path.find(fmt::format("{:02x}", fmt::join(block, ""))) == std::string::npos) {
                continue;
            }
            const auto atSecond = call.path.find("/second/") != std::string::npos;
            strays += atSecond != (UC::Detail::BlockIdHasher{}(block) % 2 == 1);
        }
        return 0;
    }};
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    ASSERT_EQ(strays, 0);
    for (const auto& block : blocks) {
        const auto name = fmt::format("{:02x}", fmt::join(block, ""));
        const auto& backend = backends[UC::Detail::BlockIdHasher{}(block) % 2];
        ASSERT_EQ(access((backend + name[0] + "/" + name).c_str(), F_OK), 0);
    }
}
