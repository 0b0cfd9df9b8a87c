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
#include <climits>
#include <unistd.h>
#include "posix_io_fault.h"
#include "posix_store_base.h"

using UC::Test::Detail::HostPages;
using UC::Test::Detail::IoFault;

class UCPosixTransferTest : public UC::Test::Detail::PosixStoreBase {};

TEST_F(UCPosixTransferTest, EveryComponentArrives)
{
    for (const size_t n : {1, 2, 61, IOV_MAX + 7}) {
        tensorSize_ = 24;
        nTensor_ = n;
        auto store = MakeStore();
        const auto blocks = MakeBlocks(3);
        HostPages from{blocks.size(), BlockSize()}, to{blocks.size(), BlockSize()};
        from.Number();
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
        ASSERT_EQ(FileSize(blocks[0]), BlockSize());
        ASSERT_EQ(Load(*store, blocks, to), UC::Status::OK());
        ASSERT_EQ(to.Bytes(), from.Bytes());
    }
}

TEST_F(UCPosixTransferTest, InterruptedAndShortCallsAreResumed)
{
    for (const size_t n : {1, 3}) {
        nTensor_ = n;
        auto store = MakeStore();
        const auto blocks = MakeBlocks(4);
        HostPages from{blocks.size(), BlockSize()}, to{blocks.size(), BlockSize()};
        from.Number();
        std::atomic<size_t> calls{0};
        IoFault fault{[&](IoFault::Call& call) {
            if (call.op != IoFault::Op::READ && call.op != IoFault::Op::WRITE) { return 0; }
            call.limit = 1000;
            return calls++ % 2 == 0 ? EINTR : 0;
        }};
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
        ASSERT_EQ(Load(*store, blocks, to), UC::Status::OK());
        ASSERT_EQ(to.Bytes(), from.Bytes());
        ASSERT_GT(calls, blocks.size() * BlockSize() / 1000);
    }
}

TEST_F(UCPosixTransferTest, WrongSizeIsAMissAndIsReplaced)
{
    nTensor_ = 2;
    auto store = MakeStore();
    const auto blocks = MakeBlocks(1);
    HostPages from{1, BlockSize()}, to{1, BlockSize()};
    from.Number();
    for (const size_t size :
         {size_t{0}, size_t{1}, tensorSize_, BlockSize() - 1, BlockSize() + 1}) {
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
        ASSERT_EQ(store->Lookup(blocks.data(), 1).Value()[0], true);
        ASSERT_EQ(truncate(File(blocks[0]).c_str(), size), 0);
        ASSERT_EQ(store->Lookup(blocks.data(), 1).Value()[0], false);
        ASSERT_TRUE(Load(*store, blocks, to).Failure()) << size;
    }
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    ASSERT_EQ(Load(*store, blocks, to), UC::Status::OK());
    ASSERT_EQ(to.Bytes(), from.Bytes());
}

TEST_F(UCPosixTransferTest, AFileThatShrinksWhileItIsReadFails)
{
    auto store = MakeStore();
    const auto blocks = MakeBlocks(1);
    HostPages from{1, BlockSize()}, to{1, BlockSize()};
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    IoFault fault{[&](IoFault::Call& call) {
        if (call.op == IoFault::Op::READ) { EXPECT_EQ(truncate(call.path.c_str(), 100), 0); }
        return 0;
    }};
    ASSERT_TRUE(Load(*store, blocks, to).Failure());
}
