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
#include <dirent.h>
#include <optional>
#include <thread>
#include "posix_io_fault.h"
#include "posix_store_base.h"
#include "time/now_time.h"

using UC::NowTime;
using UC::Test::Detail::HostPages;
using UC::Test::Detail::IoFault;
using UC::Test::Detail::NamedFiles;

class UCPosixTimeoutTest : public UC::Test::Detail::PosixStoreBase {
protected:
    using Op = IoFault::Op;
    static constexpr size_t kTimeoutMs = 200;

    std::unique_ptr<UC::StoreV1> MakeStoreThatTimesOut(size_t concurrency = 4) const
    {
        auto config = MakeConfig();
        config.SetNumber("timeout_ms", kTimeoutMs);
        config.SetNumber("posix_data_trans_concurrency", concurrency);
        return MakeStore(config);
    }
    /** Holds every call of a kind until it is let go. */
    struct Gate {
        explicit Gate(Op op)
            : fault{[this, op](IoFault::Call& call) {
                  if (call.op != op) { return 0; }
                  held++;
                  while (closed) { IoFault::SleepMs(5); }
                  return 0;
              }}
        {
        }
        ~Gate() { closed = false; }
        void AwaitHeld(size_t n) const
        {
            while (held < n) { IoFault::SleepMs(1); }
        }
        std::atomic<bool> closed{true};
        std::atomic<size_t> held{0};
        IoFault fault;
    };
    static bool Contains(UC::StoreV1& store, const Blocks& blocks, size_t i = 0)
    {
        return store.Lookup(blocks.data(), blocks.size()).Value()[i];
    }
};

TEST_F(UCPosixTimeoutTest, ALoadReturnsWhenItsPagesAreFree)
{
    auto store = MakeStoreThatTimesOut(2);
    const auto blocks = MakeBlocks(6);
    HostPages from{6, BlockSize(), 7}, to{6, BlockSize()};
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    Gate gate{Op::READ};
    auto task = store->Load(MakeDesc(blocks, to)).Value();
    gate.AwaitHeld(2);
    std::thread later{[&] {
        IoFault::SleepMs(3 * kTimeoutMs);
        ASSERT_EQ(store->Check(task).Value(), false);
        gate.closed = false;
    }};
    const auto start = NowTime::Now();
    ASSERT_EQ(store->Wait(task), UC::Status::Timeout());
    ASSERT_GE(NowTime::Now() - start, 3 * kTimeoutMs * 1e-3);
    const auto returned = to.Bytes();
    later.join();
    IoFault::SleepMs(50);
    ASSERT_EQ(to.Bytes(), returned);
    ASSERT_EQ(gate.held, 2);  // what was queued did not begin
    ASSERT_EQ(store->Wait(task), UC::Status::NotFound());
    ASSERT_EQ(Load(*store, blocks, to), UC::Status::OK());
}

TEST_F(UCPosixTimeoutTest, AQueuedLoadDoesNotWaitForOthers)
{
    auto store = MakeStoreThatTimesOut(1);
    const auto blocks = MakeBlocks(2);
    HostPages from{2, BlockSize(), 7}, to{2, BlockSize()};
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    Gate gate{Op::READ};
    auto stuck = store->Load(MakeDesc({blocks[0]}, to)).Value();
    ASSERT_EQ(store->Check(stuck).Value(), false);
    gate.AwaitHeld(1);
    auto queued = store->Load(MakeDesc({blocks[1]}, to)).Value();
    const auto start = NowTime::Now();
    ASSERT_EQ(store->Wait(queued), UC::Status::Timeout());
    ASSERT_LT(NowTime::Now() - start, 3 * kTimeoutMs * 1e-3);
    gate.closed = false;
    while (!store->Check(stuck).Value()) { IoFault::SleepMs(1); }
    ASSERT_EQ(store->Wait(stuck), UC::Status::OK());  // late, but nobody had given it up
    ASSERT_EQ(to.Data()[0], 7);
}

TEST_F(UCPosixTimeoutTest, ATimedOutDumpIsNeverPublished)
{
    const auto ops = {Op::WRITE, Op::CLOSE, Op::RENAME};
    for (size_t round = 0; round < 2 * ops.size(); round++) {
        const auto op = ops.begin()[round / 2];
        std::optional<NamedFiles> named;
        if (round % 2 == 1) { named.emplace(); }
        auto store = MakeStoreThatTimesOut();
        const auto blocks = MakeBlocks(1);
        HostPages from{1, BlockSize(), 7};
        Gate gate{op};
        auto task = store->Dump(MakeDesc(blocks, from)).Value();
        gate.AwaitHeld(1);
        const auto start = NowTime::Now();
        ASSERT_EQ(store->Wait(task), UC::Status::Timeout());
        ASSERT_LT(NowTime::Now() - start, 3 * kTimeoutMs * 1e-3);
        ASSERT_EQ(Contains(*store, blocks), false);
        ASSERT_FALSE(store->Dump(MakeDesc(blocks, from)).HasValue());
        ASSERT_EQ(store->Check(task).Value(), false);
        ASSERT_EQ(store->Wait(task), UC::Status::Timeout());
        ASSERT_EQ(store->Check(task).Value(), false);
        gate.closed = false;
        while (!store->Check(task).Value()) { IoFault::SleepMs(1); }
        ASSERT_EQ(store->Check(task).Error(), UC::Status::NotFound());
        ASSERT_EQ(FileSize(blocks[0]), -1);
        ASSERT_EQ(Contains(*store, blocks), false);
        if (rmdir((Path() + ".tmp").c_str()) != 0) { ASSERT_EQ(errno, ENOENT); }
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    }
}

TEST_F(UCPosixTimeoutTest, AStalledStoreRefusesAndRecovers)
{
    auto store = MakeStoreThatTimesOut();
    const auto blocks = MakeBlocks(2);
    HostPages from{2, BlockSize(), 7}, to{2, BlockSize()};
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    Gate gate{Op::READ};
    auto task = store->Load(MakeDesc({blocks[0]}, to)).Value();
    ASSERT_EQ(store->Check(task).Value(), false);
    gate.AwaitHeld(1);
    ASSERT_EQ(Contains(*store, blocks), true);
    IoFault::SleepMs(2 * kTimeoutMs);  // nobody waits for the task, yet it is overdue
    const auto start = NowTime::Now();
    ASSERT_EQ(store->Load(MakeDesc({blocks[1]}, to)).Error(), UC::Status::Timeout());
    ASSERT_EQ(store->Dump(MakeDesc({blocks[1]}, from)).Error(), UC::Status::Timeout());
    ASSERT_EQ(Contains(*store, blocks, 1), false);
    ASSERT_EQ(store->LookupOnPrefix(blocks.data(), 2).Value(), -1);
    ASSERT_LT(NowTime::Now() - start, 0.1);
    gate.closed = false;
    while (!store->Check(task).Value()) { IoFault::SleepMs(1); }
    ASSERT_EQ(Contains(*store, blocks, 1), true);
    ASSERT_EQ(Load(*store, blocks, to), UC::Status::OK());
    ASSERT_EQ(to.Bytes(), from.Bytes());
}

TEST_F(UCPosixTimeoutTest, AHungLookupStallsTheStore)
{
    auto store = MakeStoreThatTimesOut();
    const auto blocks = MakeBlocks(4);
    Gate gate{Op::STAT};
    std::thread hung{[&] { ASSERT_EQ(Contains(*store, blocks), false); }};
    gate.AwaitHeld(1);
    IoFault::SleepMs(2 * kTimeoutMs);
    const auto start = NowTime::Now();
    ASSERT_EQ(Contains(*store, blocks), false);
    ASSERT_LT(NowTime::Now() - start, 0.1);
    gate.closed = false;
    hung.join();
}

TEST_F(UCPosixTimeoutTest, NoTimeoutMeansNoStall)
{
    auto config = MakeConfig();
    config.SetNumber("timeout_ms", 0);
    auto store = MakeStore(config);
    const auto blocks = MakeBlocks(1);
    HostPages from{1, BlockSize(), 7};
    IoFault fault{[](IoFault::Call& call) {
        if (call.op == Op::WRITE) { IoFault::SleepMs(kTimeoutMs); }
        return 0;
    }};
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    ASSERT_EQ(Contains(*store, blocks), true);
}

TEST_F(UCPosixTimeoutTest, DestroyingAnIdleStoreIsQuick)
{
    auto store = MakeStore();
    HostPages from{1, BlockSize(), 7};
    ASSERT_EQ(Dump(*store, MakeBlocks(1), from), UC::Status::OK());
    const auto start = NowTime::Now();
    store.reset();
    ASSERT_LT(NowTime::Now() - start, 0.05);
}

TEST_F(UCPosixTimeoutTest, DestroyingAStoreFinishesItsDumps)
{
    auto store = MakeStoreThatTimesOut(1);
    const auto blocks = MakeBlocks(20);
    HostPages from{20, BlockSize(), 7};
    IoFault fault{[](IoFault::Call& call) {
        if (call.op == Op::WRITE) { IoFault::SleepMs(5); }
        return 0;
    }};
    store->Dump(MakeDesc(blocks, from)).Value();
    store.reset();
    for (const auto& block : blocks) { ASSERT_EQ(FileSize(block), BlockSize()); }
}

TEST_F(UCPosixTimeoutTest, DestroyingAStoreWaitsForItsThreads)
{
    for (const auto dump : {false, true}) {
        auto store = MakeStoreThatTimesOut();
        const auto blocks = MakeBlocks(1);
        auto pages = std::make_unique<HostPages>(1, BlockSize(), 7);
        ASSERT_EQ(Dump(*store, blocks, *pages), UC::Status::OK());
        IoFault fault{[&](IoFault::Call& call) {
            const auto slow = call.op == (dump ? Op::WRITE : Op::READ);
            if (slow) { IoFault::SleepMs(3 * kTimeoutMs); }
            return 0;
        }};
        const auto desc = MakeDesc(dump ? MakeBlocks(1) : blocks, *pages);
        auto task = dump ? store->Dump(desc) : store->Load(desc);
        IoFault::SleepMs(50);
        store.reset();
        pages.reset();  // what a sanitizer watches
    }
}

TEST_F(UCPosixTimeoutTest, WhatIsNoShardIsRefused)
{
    nTensor_ = 2;
    auto store = MakeStore();
    const auto blocks = MakeBlocks(1);
    HostPages from{1, BlockSize()};
    auto desc = MakeDesc(blocks, from);
    desc[0].index = 1;
    ASSERT_EQ(store->Dump(desc).Error(), UC::Status::InvalidParam());
    desc[0].index = 0;
    desc[0].addrs.pop_back();
    ASSERT_EQ(store->Load(desc).Error(), UC::Status::InvalidParam());
    ASSERT_EQ(store->Wait(store->Dump({}).Value()), UC::Status::OK());
}
