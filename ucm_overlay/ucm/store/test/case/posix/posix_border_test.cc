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
#include <filesystem>
#include <fmt/ranges.h>
#include "detail/path_base.h"
#include "detail/types_helper.h"
#include "ucmstore_v1.h"

extern "C" UC::StoreV1* MakePosixStore();

class UCPosixBorderTest : public UC::Test::Detail::PathBase {
protected:
    static constexpr size_t tensorSize = 4096;
    std::unique_ptr<UC::StoreV1> store_;
    std::vector<char> memory_ = std::vector<char>(tensorSize * 4);

    void SetUp() override
    {
        PathBase::SetUp();
        UC::Detail::Dictionary config;
        config.Set("storage_backends", std::vector<std::string>{Path()});
        config.SetNumber("device_id", 0);
        config.SetNumber("tensor_size", tensorSize);
        config.SetNumber("shard_size", tensorSize * 2);
        config.SetNumber("block_size", tensorSize * 4);
        config.SetNumber("posix_data_trans_concurrency", 1);
        config.SetNumber("posix_lookup_concurrency", 1);
        config.SetNumber("data_dir_shard_bytes", 0);
        config.SetNumber("timeout_ms", 0);
        store_.reset(MakePosixStore());
        ASSERT_EQ(store_->Setup(config), UC::Status::OK());
    }
    void* At(size_t i) { return memory_.data() + i * tensorSize; }
    UC::Detail::TaskDesc Shard(size_t index, std::vector<void*> addrs)
    {
        UC::Detail::TaskDesc task;
        task.push_back({UC::Test::Detail::TypesHelper::MakeBlockIdRandomly(), index, addrs});
        return task;
    }
    static std::string Refusal(const UC::Expected<UC::Detail::TaskHandle>& res)
    {
        if (res) { return "accepted"; }
        auto s = res.Error();
        return s == UC::Status::InvalidParam() ? s.Message() : s.ToString();
    }
    std::string DumpRefusal(const UC::Detail::TaskDesc& task)
    {
        auto message = Refusal(store_->Dump(task));
        EXPECT_TRUE(std::filesystem::is_empty(Path() + "data"));
        return message;
    }
};

TEST_F(UCPosixBorderTest, ShardOutsideTheBlock)
{
    EXPECT_EQ(DumpRefusal(Shard(2, {At(0), At(1)})), "shard_index[0]: expected 0 to 1, found 2");
    EXPECT_EQ(DumpRefusal(Shard(1000000000, {At(0), At(1)})),
              "shard_index[0]: expected 0 to 1, found 1000000000");
    EXPECT_EQ(Refusal(store_->Load(Shard(2, {At(0), At(1)}))),
              "shard_index[0]: expected 0 to 1, found 2");
}

TEST_F(UCPosixBorderTest, PointersThatDoNotMakeAShard)
{
    const std::string rule = "src_addr[0]: expected 2 pointers (shard_size / tensor_size), found ";
    EXPECT_EQ(DumpRefusal(Shard(0, {At(0)})), rule + "1");
    EXPECT_EQ(DumpRefusal(Shard(0, {At(0), At(1), At(2)})), rule + "3");
    EXPECT_EQ(DumpRefusal(Shard(0, {})), rule + "0");
    EXPECT_EQ(DumpRefusal(Shard(0, {At(0), nullptr})), "src_addr[0][1]: null pointer");
    EXPECT_EQ(Refusal(store_->Load(Shard(0, {nullptr, At(0)}))), "dst_addr[0][0]: null pointer");
}

TEST_F(UCPosixBorderTest, OneBadShardRefusesTheBatch)
{
    auto task = Shard(0, {At(0), At(1)});
    task.push_back(Shard(1, {At(2)}).front());
    EXPECT_EQ(DumpRefusal(task),
              "src_addr[1]: expected 2 pointers (shard_size / tensor_size), found 1");
}

TEST_F(UCPosixBorderTest, EmptyBatchIsAFinishedTask)
{
    for (auto res : {store_->Load({}), store_->Dump({})}) {
        ASSERT_TRUE(res.HasValue());
        auto checked = store_->Check(res.Value());
        ASSERT_TRUE(checked.HasValue());
        EXPECT_TRUE(checked.Value());
        EXPECT_EQ(store_->Wait(res.Value()), UC::Status::OK());
    }
    auto found = store_->Lookup(nullptr, 0);
    ASSERT_TRUE(found.HasValue());
    EXPECT_TRUE(found.Value().empty());
    auto prefix = store_->LookupOnPrefix(nullptr, 0);
    ASSERT_TRUE(prefix.HasValue());
    EXPECT_EQ(prefix.Value(), -1);
}
