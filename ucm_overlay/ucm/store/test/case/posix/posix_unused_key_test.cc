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
#include "ucmstore_v1.h"

extern "C" UC::StoreV1* MakePosixStore();

class UCPosixUnusedKeyTest : public UC::Test::Detail::PathBase {};

TEST_F(UCPosixUnusedKeyTest, MisspeltKeyStaysUnread)
{
    UC::Detail::Dictionary config;
    config.Set("storage_backends", std::vector<std::string>{Path()});
    config.SetNumber("data_dir_shard_bytes", 0);
    config.SetNumber("posix_lookup_concurrency", 1);
    config.SetNumber("timeout_ms", 0);
    config.Set("posix_io_engin", std::string("aio"));
    std::unique_ptr<UC::StoreV1> store{MakePosixStore()};
    ASSERT_EQ(store->Setup(config), UC::Status::OK());
    EXPECT_TRUE(config.WasRead("storage_backends"));
    EXPECT_TRUE(config.WasRead("data_dir_shard_bytes"));
    EXPECT_FALSE(config.WasRead("posix_io_engin"));
    EXPECT_FALSE(config.WasRead("posix_io_engine"));
}
