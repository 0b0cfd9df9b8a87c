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
#include <sstream>
#include "posix_io_fault.h"
#include "posix_store_base.h"

using UC::Test::Detail::HostPages;
using UC::Test::Detail::IoFault;

/** Blocks whose shards come in a task each, and one of them is lost. */
class UCPosixTryTest : public UC::Test::Detail::PosixStoreBase {
protected:
    using Op = IoFault::Op;
    static constexpr size_t kTimeoutMs = 200;

    void SetUp() override
    {
        PosixStoreBase::SetUp();
        nShard_ = 3;
    }
    std::unique_ptr<UC::StoreV1> MakeStoreThatTimesOut() const
    {
        auto config = MakeConfig();
        config.SetNumber("timeout_ms", kTimeoutMs);
        return MakeStore(config);
    }
    UC::Status DumpShard(UC::StoreV1& store, const Blocks& blocks, const HostPages& pages,
                         size_t index) const
    {
        return store.Wait(store.Dump({MakeDesc(blocks, pages)[index]}).Value());
    }
    std::string Content(const UC::Detail::BlockId& block) const
    {
        std::ifstream file{File(block)};
        std::stringstream text;
        text << file.rdbuf();
        return text.str();
    }
    size_t Temporaries() const
    {
        size_t n = 0;
        auto dir = opendir((Path() + ".tmp").c_str());
        if (!dir) { return 0; }
        while (auto entry = readdir(dir)) { n += entry->d_name[0] != '.'; }
        closedir(dir);
        return n;
    }
};

TEST_F(UCPosixTryTest, ALostShardSpoilsTheOthers)
{
    auto store = MakeStore();
    HostPages a{1, BlockSize(), 1}, b{1, BlockSize(), 2};
    std::vector<size_t> order{0, 1, 2};
    do {
        const auto blocks = MakeBlocks(1);
        {
            IoFault fault{[&](IoFault::Call& call) {
                return call.op == Op::WRITE && call.offset == 0 ? EIO : 0;
            }};
            auto lost = false;
            for (auto index : order) {
                lost = lost || index == 0;
                ASSERT_EQ(DumpShard(*store, blocks, a, index).Failure(), lost);
            }
        }
        ASSERT_EQ(FileSize(blocks[0]), -1);
        ASSERT_EQ(Temporaries(), 0);
        for (auto index : order) {
            ASSERT_EQ(DumpShard(*store, blocks, b, index), UC::Status::OK());
        }
        ASSERT_EQ(Content(blocks[0]), b.Bytes());
    } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(UCPosixTryTest, AShardThatComesAgainBeginsANewTry)
{
    auto store = MakeStore();
    const auto blocks = MakeBlocks(1);
    HostPages a{1, BlockSize(), 1}, b{1, BlockSize(), 2};
    {
        IoFault fault{[](IoFault::Call& call) { return call.op == Op::WRITE ? EIO : 0; }};
        ASSERT_TRUE(DumpShard(*store, blocks, a, 1).Failure());
    }
    ASSERT_TRUE(DumpShard(*store, blocks, a, 0).Failure());
    for (auto index : {0, 1, 2}) {
        ASSERT_EQ(DumpShard(*store, blocks, b, index), UC::Status::OK());
    }
    ASSERT_EQ(Content(blocks[0]), b.Bytes());
}

TEST_F(UCPosixTryTest, AShardThatTimedOutIsLost)
{
    auto store = MakeStoreThatTimesOut();
    const auto blocks = MakeBlocks(1);
    HostPages pages{1, BlockSize(), 1};
    {
        std::atomic<bool> closed{true};
        IoFault fault{[&](IoFault::Call& call) {
            while (call.op == Op::WRITE && closed) { IoFault::SleepMs(1); }
            return 0;
        }};
        auto task = store->Dump({MakeDesc(blocks, pages)[0]}).Value();
        ASSERT_EQ(store->Wait(task), UC::Status::Timeout());
        std::fill_n(pages.Data(), tensorSize_, 9);
        closed = false;
        while (!store->Check(task).Value()) { IoFault::SleepMs(1); }
    }
    ASSERT_TRUE(DumpShard(*store, blocks, pages, 1).Failure());
    ASSERT_TRUE(DumpShard(*store, blocks, pages, 2).Failure());
    ASSERT_EQ(FileSize(blocks[0]), -1);
    ASSERT_EQ(Temporaries(), 0);
}

TEST_F(UCPosixTryTest, AShardThatWasNeverBegunIsLost)
{
    auto config = MakeConfig();
    config.SetNumber("timeout_ms", kTimeoutMs);
    config.SetNumber("posix_data_trans_concurrency", size_t{1});
    auto store = MakeStore(config);
    const auto blocks = MakeBlocks(2);
    HostPages pages{2, BlockSize(), 1};
    const auto desc = MakeDesc(blocks, pages);
    {
        std::atomic<bool> closed{true};
        IoFault fault{[&](IoFault::Call& call) {
            while (call.op == Op::WRITE && closed) { IoFault::SleepMs(1); }
            return 0;
        }};
        const auto first = store->Dump({desc[0]}).Value();
        const auto queued = store->Dump({desc[3]}).Value();
        ASSERT_EQ(store->Wait(queued), UC::Status::Timeout());
        closed = false;
        while (!store->Check(first).Value()) { IoFault::SleepMs(1); }
    }
    ASSERT_TRUE(store->Wait(store->Dump({desc[4]}).Value()).Failure());
    ASSERT_TRUE(store->Wait(store->Dump({desc[5]}).Value()).Failure());
    ASSERT_EQ(store->Wait(store->Dump({desc[3]}).Value()), UC::Status::OK());
}
