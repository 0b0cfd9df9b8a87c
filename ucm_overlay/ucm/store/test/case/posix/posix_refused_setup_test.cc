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
#include "posix_store_base.h"

class UCPosixRefusedSetupTest : public UC::Test::Detail::PosixStoreBase {};

TEST_F(UCPosixRefusedSetupTest, LeavesNothingBehind)
{
    tensorSize_ = 1 << 20;
    auto sync = MakeConfig(), capacity = MakeConfig(), queue = MakeConfig();
    sync.Set("posix_sync", std::string("often"));
    capacity.SetNumber("posix_capacity_gb", 1);
    capacity.Set("posix_gc_trigger_threshold_ratio", 1e-4);  // less than a block
    capacity.SetNumber("data_dir_shard_bytes", 3);
    queue.SetNumber("posix_data_trans_concurrency", 1 << 20);
    for (const auto& config : {sync, capacity, queue}) {
        std::unique_ptr<UC::StoreV1> store{MakePosixStore()};
        ASSERT_EQ(store->Setup(config), UC::Status::InvalidParam());
        ASSERT_TRUE(std::filesystem::is_empty(Path()));
    }
}
