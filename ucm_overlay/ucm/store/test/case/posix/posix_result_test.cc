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
#include "posix_io_fault.h"
#include "posix_store_base.h"

using UC::Test::Detail::HostPages;
using UC::Test::Detail::IoFault;

class UCPosixResultTest : public UC::Test::Detail::PosixStoreBase {
protected:
    using Op = IoFault::Op;
    static std::string Hex(const UC::Detail::BlockId& block)
    {
        return fmt::format("{:02x}", fmt::join(block, ""));
    }
    static void ExpectText(const UC::Status& s, const std::vector<std::string>& parts)
    {
        for (const auto& part : parts) {
            EXPECT_NE(s.ToString().find(part), std::string::npos) << s.ToString();
        }
    }
};

TEST_F(UCPosixResultTest, OneBadBlockFailsAlone)
{
    auto config = MakeConfig();
    config.SetNumber("posix_data_trans_concurrency", 1);
    auto store = MakeStore(config);
    const auto blocks = MakeBlocks(8);
    HostPages from{8, BlockSize()}, to{8, BlockSize()};
    from.Number();
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    for (const size_t bad : {0, 3, 7}) {
        ASSERT_EQ(unlink(File(blocks[bad]).c_str()), 0);
        const auto s = Load(*store, blocks, to);
        ExpectText(s, {"load", "1 of 8", Hex(blocks[bad]), "open(" + File(blocks[bad]), "ENOENT",
                       "not found"});
        auto expected = from.Bytes(), loaded = to.Bytes();
        expected.erase(bad * BlockSize(), BlockSize());
        loaded.erase(bad * BlockSize(), BlockSize());
        ASSERT_EQ(loaded, expected);
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    }
}

TEST_F(UCPosixResultTest, AFullDiskStoresWhatFits)
{
    auto config = MakeConfig();
    config.SetNumber("posix_data_trans_concurrency", 1);
    auto store = MakeStore(config);
    const auto blocks = MakeBlocks(6);
    HostPages from{6, BlockSize()};
    std::atomic<size_t> writes{0};
    IoFault fault{[&](IoFault::Call& call) {
        return call.op == Op::WRITE && ++writes % 2 == 0 ? ENOSPC : 0;
    }};
    const auto s = Dump(*store, blocks, from);
    ASSERT_EQ(s, UC::Status::NoSpace());
    ExpectText(s,
               {"dump", "3 of 6", Hex(blocks[1]), "pwrite(" + Path(), "ENOSPC", "No space left"});
    for (size_t i = 0; i < blocks.size(); i++) {
        ASSERT_EQ(FileSize(blocks[i]), i % 2 == 0 ? BlockSize() : -1);
    }
}

TEST_F(UCPosixResultTest, TheFirstBlockIsNamed)
{
    auto store = MakeStore();
    const auto blocks = MakeBlocks(50);
    HostPages to{50, BlockSize()};
    ExpectText(Load(*store, blocks, to), {"50 of 50", Hex(blocks[0])});
}

TEST_F(UCPosixResultTest, ALateTaskSaysHowMuchIsMissing)
{
    auto config = MakeConfig();
    config.SetNumber("timeout_ms", 100);
    config.SetNumber("posix_data_trans_concurrency", 1);
    auto store = MakeStore(config);
    const auto blocks = MakeBlocks(3);
    HostPages from{3, BlockSize()};
    std::atomic<size_t> writes{0};
    IoFault fault{[&](IoFault::Call& call) {
        if (call.op == Op::WRITE && ++writes == 2) { IoFault::SleepMs(300); }
        return 0;
    }};
    const auto task = store->Dump(MakeDesc(blocks, from)).Value();
    const auto s = store->Wait(task);
    while (!store->Check(task).Value()) { IoFault::SleepMs(1); }
    ASSERT_EQ(s, UC::Status::Timeout());
    ExpectText(s, {"dump", "2 of 3", "in time"});
}

TEST_F(UCPosixResultTest, ATaskIsWaitedForOnce)
{
    auto store = MakeStore();
    HostPages from{1, BlockSize()};
    const auto task = store->Dump(MakeDesc(MakeBlocks(1), from)).Value();
    ASSERT_EQ(store->Wait(task), UC::Status::OK());
    ExpectText(store->Wait(task), {"unknown task"});
    ExpectText(store->Check(task).Error(), {"unknown task"});
}
