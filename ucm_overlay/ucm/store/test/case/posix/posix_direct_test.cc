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

using UC::Test::Detail::HostPages;

class UCPosixDirectTest : public UC::Test::Detail::PosixStoreBase {};

TEST_F(UCPosixDirectTest, WhatIsNotAlignedIsRefused)
{
    for (const size_t size : {786240, 177408, 34560, 512}) {
        tensorSize_ = size;
        auto config = MakeConfig();
        config.Set("io_direct", true);
        std::unique_ptr<UC::StoreV1> store{MakePosixStore()};
        const auto s = store->Setup(config);
        ASSERT_EQ(s, UC::Status::InvalidParam());
        ASSERT_NE(s.ToString().find(std::to_string(size)), std::string::npos);
        ASSERT_TRUE(MakeStore() != nullptr);  // buffered
    }
    tensorSize_ = 4096;
    auto config = MakeConfig();
    config.Set("io_direct", true);
    auto store = MakeStore(config);
    const auto blocks = MakeBlocks(2);
    HostPages from{3, BlockSize()}, to{3, BlockSize()};
    auto desc = MakeDesc(blocks, from.Number());
    desc[1].addrs[0] = from.Data() + 64;
    ASSERT_EQ(store->Dump(desc).Error(), UC::Status::InvalidParam());
    ASSERT_EQ(store->Load(desc).Error(), UC::Status::InvalidParam());
    ASSERT_EQ(FileSize(blocks[0]), -1);
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    ASSERT_EQ(Load(*store, blocks, to), UC::Status::OK());
    ASSERT_EQ(to.Bytes().substr(0, 2 * BlockSize()), from.Bytes().substr(0, 2 * BlockSize()));
}
