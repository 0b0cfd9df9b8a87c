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
#include <unistd.h>
#include "detail/mock_store.h"
#include "posix_io_fault.h"
#include "posix_store_base.h"

using UC::Test::Detail::HostPages;
using UC::Test::Detail::IoFault;
using UC::Test::Detail::NamedFiles;
using Moved = std::vector<uint8_t>;

class UCPosixWaitBlocksTest : public UC::Test::Detail::PosixStoreBase {
protected:
    using Op = IoFault::Op;
};

TEST_F(UCPosixWaitBlocksTest, OneByteABlock)
{
    NamedFiles named;  // a write tells its block
    auto store = MakeStore();
    const auto blocks = MakeBlocks(4);
    HostPages from{4, BlockSize()}, to{4, BlockSize()};
    from.Number();
    IoFault fault{[&](IoFault::Call& call) {
        const auto bad = fmt::format("{:02x}", fmt::join(blocks[2], ""));
        const auto hit = call.path.find(bad) != std::string::npos;
        return call.op == Op::WRITE && hit ? EIO : 0;
    }};
    auto task = store->Dump(MakeDesc(blocks, from)).Value();
    const auto dumped = store->WaitBlocks(task).Value();
    ASSERT_EQ(dumped.moved, (Moved{1, 1, 0, 1}));
    ASSERT_NE(dumped.error.find("dump failed for 1 of 4 blocks"), std::string::npos);
    ASSERT_NE(dumped.error.find("EIO"), std::string::npos);
    ASSERT_EQ(store->Lookup(blocks.data(), 4).Value(), (Moved{1, 1, 0, 1}));
    ASSERT_EQ(unlink(File(blocks[0]).c_str()), 0);
    task = store->Load(MakeDesc(blocks, to)).Value();
    ASSERT_EQ(store->WaitBlocks(task).Value().moved, (Moved{0, 1, 0, 1}));
    ASSERT_EQ(to.Bytes().substr(BlockSize(), BlockSize()),
              from.Bytes().substr(BlockSize(), BlockSize()));
    ASSERT_EQ(store->WaitBlocks(task).Error(), UC::Status::NotFound());
    ASSERT_TRUE(store->WaitBlocks(store->Load({}).Value()).Value().moved.empty());
}

TEST_F(UCPosixWaitBlocksTest, ABlockThatIsNotPublishedHasNoShard)
{
    nShard_ = 3;
    auto store = MakeStore();
    const auto blocks = MakeBlocks(2);
    HostPages from{2, BlockSize()};
    auto desc = MakeDesc(blocks, from);
    desc[4].addrs[0] = reinterpret_cast<void*>(8);
    ASSERT_EQ(store->WaitBlocks(store->Dump(desc).Value()).Value().moved,
              (Moved{1, 1, 1, 0, 0, 0}));
}

TEST_F(UCPosixWaitBlocksTest, WhatIsLateIsNotMoved)
{
    auto config = MakeConfig();
    config.SetNumber("timeout_ms", 100);
    config.SetNumber("posix_data_trans_concurrency", 1);
    auto store = MakeStore(config);
    for (const auto dump : {true, false}) {
        const auto blocks = MakeBlocks(3);
        HostPages pages{3, BlockSize()};
        if (!dump) { ASSERT_EQ(Dump(*store, blocks, pages), UC::Status::OK()); }
        std::atomic<size_t> calls{0};
        IoFault fault{[&](IoFault::Call& call) {
            if (call.op == (dump ? Op::WRITE : Op::READ) && ++calls == 2) { IoFault::SleepMs(300); }
            return 0;
        }};
        const auto desc = MakeDesc(blocks, pages);
        auto task = (dump ? store->Dump(desc) : store->Load(desc)).Value();
        const auto moved = store->WaitBlocks(task).Value().moved;
        ASSERT_TRUE(moved[0] && !moved[2]);
        if (!dump) { continue; }  // where the waiting thread itself was late, it has the block
        ASSERT_EQ(moved, (Moved{1, 0, 0}));
        while (!store->Check(task).Value()) { IoFault::SleepMs(1); }
        ASSERT_EQ(store->Lookup(blocks.data(), 3).Value(), (Moved{1, 0, 0}));
    }
}

TEST_F(UCPosixWaitBlocksTest, StoresWithoutItAnswerForTheWholeTask)
{
    UC::Test::Detail::MockStore store;
    EXPECT_CALL(store, Wait(1)).WillOnce(testing::Return(UC::Status::OK()));
    EXPECT_CALL(store, Wait(2)).WillOnce(testing::Return(UC::Status::Error()));
    ASSERT_EQ(store.WaitBlocks(1).Value().moved, (Moved{1}));
    ASSERT_EQ(store.WaitBlocks(2).Value().moved, (Moved{0}));
}
