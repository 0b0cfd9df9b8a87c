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
#include "posix_gc_base.h"

using UC::Test::Detail::HostPages;

class UCPosixGcRecencyTest : public UC::Test::Detail::PosixGcBase {
protected:
    static constexpr time_t fresh = 600;

    std::string File(const UC::Detail::BlockId& block) const
    {
        return Path() + "data/" + NameOf(block);
    }
    /** Blocks that were last used long ago. */
    Blocks Stored(UC::StoreV1& store, size_t n) const
    {
        const auto blocks = MakeBlocks(n);
        HostPages pages{n, BlockSize()};
        EXPECT_EQ(Dump(store, blocks, pages), UC::Status::OK());
        for (const auto& block : blocks) { SetAge(File(block), 2 * fresh); }
        return blocks;
    }
    bool BecomesFresh(const UC::Detail::BlockId& block) const
    {
        return Soon([&] { return AgeOf(File(block)) < fresh; });
    }
};

TEST_F(UCPosixGcRecencyTest, WhatWasLoadedOrStoredAgainGoesLast)
{
    auto store = MakeStore(MakeConfig(100));
    const auto blocks = Stored(*store, 20);
    HostPages pages{1, BlockSize()};
    const std::vector<uint8_t> all(20, true);
    ASSERT_EQ(store->Lookup(blocks.data(), 20).Value(), all);
    for (size_t i = 0; i < 3; i++) {
        ASSERT_EQ(Load(*store, {blocks[i]}, pages), UC::Status::OK());
        ASSERT_TRUE(BecomesFresh(blocks[i]));
    }
    for (size_t i = 3; i < 5; i++) {
        ASSERT_EQ(Dump(*store, {blocks[i]}, pages), UC::Status::OK());
        ASSERT_TRUE(BecomesFresh(blocks[i]));
    }
    for (size_t i = 5; i < 20; i++) { ASSERT_GT(AgeOf(File(blocks[i])), fresh); }
    store.reset();
    store = MakeStore(MakeConfig(10));
    std::vector<uint8_t> used(20);
    std::fill_n(used.begin(), 5, true);
    ASSERT_TRUE(Soon([&] { return store->Lookup(blocks.data(), 20).Value() == used; }));
    AwaitCheck();
    ASSERT_EQ(store->Lookup(blocks.data(), 20).Value(), used);
}

TEST_F(UCPosixGcRecencyTest, AYoungBlockInUseOutlivesYoungerOnes)
{
    auto store = MakeStore(MakeConfig(100));
    const auto used = Stored(*store, 1);
    SetAge(File(used[0]), 200);
    HostPages pages{1, BlockSize()};
    ASSERT_EQ(Load(*store, used, pages), UC::Status::OK());
    ASSERT_TRUE(Soon([&] { return AgeOf(File(used[0])) < 10; }));
    store.reset();
    auto blocks = PutBlocks(Path(), 12, 10);
    blocks.push_back(File(used[0]));
    store = MakeStore(MakeConfig(10));
    ASSERT_TRUE(Soon([&] { return YoungestAreThere(blocks, 5); }));
}

TEST_F(UCPosixGcRecencyTest, ABlockIsNotWrittenToWithEachUse)
{
    auto config = MakeConfig(100);
    config.SetNumber("posix_gc_check_interval_sec", 2 * fresh);
    const auto store = MakeStore(config);
    const auto blocks = Stored(*store, 2);
    SetAge(File(blocks[0]), fresh / 2);
    HostPages pages{2, BlockSize()};
    ASSERT_EQ(Load(*store, blocks, pages), UC::Status::OK());
    ASSERT_TRUE(BecomesFresh(blocks[1]));
    ASSERT_GE(AgeOf(File(blocks[0])), fresh / 2);
}

TEST_F(UCPosixGcRecencyTest, WithoutACapacityNothingIsWritten)
{
    auto config = MakeConfig(100);
    config.Set("posix_gc_enable", false);
    const auto store = MakeStore(config);
    const auto blocks = Stored(*store, 1);
    HostPages pages{1, BlockSize()};
    ASSERT_EQ(Load(*store, blocks, pages), UC::Status::OK());
    ASSERT_FALSE(Soon([&] { return AgeOf(File(blocks[0])) < fresh; }, 300));
}
