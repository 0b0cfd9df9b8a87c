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
#include <fmt/ranges.h>
#include "detail/path_base.h"
#include "detail/types_helper.h"
#include "ucmstore_v1.h"

extern "C" UC::StoreV1* MakePosixStore();

class UCPosixTransferRefusalTest : public UC::Test::Detail::PathBase {
protected:
    std::unique_ptr<UC::StoreV1> MakeStore(ssize_t deviceId) const
    {
        UC::Detail::Dictionary config;
        config.Set("storage_backends", std::vector<std::string>{Path()});
        config.SetNumber("device_id", deviceId);
        config.SetNumber("tensor_size", sizeof(buffer_));
        config.SetNumber("shard_size", sizeof(buffer_));
        config.SetNumber("block_size", sizeof(buffer_));
        config.SetNumber("posix_data_trans_concurrency", 1);
        config.SetNumber("posix_lookup_concurrency", 1);
        config.SetNumber("data_dir_shard_bytes", 0);
        config.SetNumber("timeout_ms", 0);
        std::unique_ptr<UC::StoreV1> store{MakePosixStore()};
        EXPECT_EQ(store->Setup(config), UC::Status::OK());
        return store;
    }
    UC::Detail::TaskDesc Task()
    {
        UC::Detail::TaskDesc task;
        task.push_back({block_, 0, {buffer_}});
        return task;
    }
    UC::Detail::BlockId block_ = UC::Test::Detail::TypesHelper::MakeBlockIdRandomly();
    char buffer_[4096] = {};
};

TEST_F(UCPosixTransferRefusalTest, StoreWithoutDeviceAnswersErrors)
{
    const std::string text = "-1, a store with device_id -1 answers lookups only";
    auto store = MakeStore(-1);
    EXPECT_EQ(store->Load(Task()).Error().ToString(), text);
    EXPECT_EQ(store->Dump(Task()).Error().ToString(), text);
    EXPECT_EQ(store->Check(1).Error().ToString(), text);
    EXPECT_EQ(store->Wait(1).ToString(), text);
    EXPECT_TRUE(store->Lookup(&block_, 1).HasValue());
}

TEST_F(UCPosixTransferRefusalTest, PrerequisiteIsRefused)
{
    auto store = MakeStore(0);
    auto task = Task();
    task.prerequisiteHandle = 0xdead;
    auto res = store->Dump(task);
    ASSERT_FALSE(res.HasValue());
    EXPECT_EQ(res.Error(), UC::Status::InvalidParam());
    EXPECT_NE(res.Error().Message().find("prerequisite_handle"), std::string::npos);
    EXPECT_NE(res.Error().Message().find("0xdead"), std::string::npos);
    auto found = store->Lookup(&block_, 1);
    ASSERT_TRUE(found.HasValue());
    EXPECT_EQ(found.Value(), std::vector<uint8_t>{false});
}
