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
#include "posix_store_base.h"

class UCPosixBlockLimitTest : public UC::Test::Detail::PosixStoreBase {
protected:
    std::string Refusal(size_t shardSize, size_t blockSize) const
    {
        auto config = MakeConfig();
        config.SetNumber("tensor_size", shardSize);
        config.SetNumber("shard_size", shardSize);
        config.SetNumber("block_size", blockSize);
        std::unique_ptr<UC::StoreV1> store{MakePosixStore()};
        return store->Setup(config).Message();
    }
};

TEST_F(UCPosixBlockLimitTest, ABlockThatNobodyCanStoreIsRefused)
{
    constexpr size_t longest = size_t{1} << 40, most = 1 << 20;
    const std::string expected{
        "config key(block_size): expected up to 1099511627776 bytes in up "
        "to 1048576 shards, found "};
    EXPECT_EQ(Refusal(longest, longest), "");
    EXPECT_EQ(Refusal(1, most), "");
    EXPECT_EQ(Refusal(longest + 1, longest + 1), expected + std::to_string(longest + 1));
    EXPECT_EQ(Refusal(4096, size_t{1} << 62), expected + std::to_string(size_t{1} << 62));
    EXPECT_EQ(Refusal(1, most + 1), expected + std::to_string(most + 1));
}
