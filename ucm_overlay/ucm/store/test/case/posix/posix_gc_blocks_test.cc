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
#include <atomic>
#include <sys/resource.h>
#include <thread>
#include "posix_gc_base.h"

namespace fs = std::filesystem;
using UC::Test::Detail::HostPages;
using UC::Test::Detail::IoFault;

class UCPosixGcBlocksTest : public UC::Test::Detail::PosixGcBase {
protected:
    static double CpuSeconds()
    {
        rusage usage;
        getrusage(RUSAGE_SELF, &usage);
        const auto seconds = [](const timeval& tv) { return tv.tv_sec + tv.tv_usec * 1e-6; };
        return seconds(usage.ru_utime) + seconds(usage.ru_stime);
    }
};

TEST_F(UCPosixGcBlocksTest, TheOldestGoFromEveryBackend)
{
    const Paths backends{Path() + "first/", Path() + "second/"};
    Paths blocks, live;
    for (size_t i = 40; i > 0; i--) { blocks.push_back(PutBlock(backends[i % 2], 1000 + i)); }
    // As after a second backend was added: an old copy, and a younger one where it is looked for.
    for (size_t i = 0; i < 10; i++) {
        const auto name = "data/" + NameOf(MakeBlocks(1)[0]);
        blocks.insert(blocks.begin(), Put(backends[i % 2] + name, BlockSize(), 9000 + i));
        live.push_back(Put(backends[(i + 1) % 2] + name, BlockSize(), 10));
    }
    const auto store = MakeStore(MakeConfig(50, backends));
    ASSERT_TRUE(Soon([&] { return CountThere(blocks) <= 15; }));
    ASSERT_EQ(CountThere(live), live.size());
    ASSERT_TRUE(YoungestAreThere(blocks, 15));
    AwaitCheck();
    ASSERT_TRUE(YoungestAreThere(blocks, 15));
}

TEST_F(UCPosixGcBlocksTest, AFolderOfTwoNamesCountsOnce)
{
    const Paths backends{Path() + "a/", Path() + "b/"};
    const auto blocks = PutBlocks(backends[0], 9);
    fs::create_directory_symlink("a", Path() + "b");
    const auto store = MakeStore(MakeConfig(10, backends));
    AwaitCheck();
    ASSERT_EQ(CountThere(blocks), blocks.size());
}

TEST_F(UCPosixGcBlocksTest, NothingElseCountsOrGoes)
{
    const auto data = Path() + "data/";
    const time_t old = 2000000;
    Paths others{Put(Path() + ".layout/" + RandomName(), BlockSize(), old),
                 Put(Path() + "0f/" + std::string(32, 'a'), BlockSize(), old),
                 Put(Path() + "beef/foot", BlockSize(), old),
                 Put(Path() + "pool/" + RandomName(), BlockSize(), old)};
    for (size_t i = 0; i < 40; i++) {
        others.push_back(Put(data + RandomName(), BlockSize() * 2 - i, old));
        others.push_back(Put(data + RandomName() + "0", BlockSize(), old));
        others.push_back(Put(data + RandomName().substr(1) + "X", BlockSize(), old));
    }
    fs::create_directory(others.emplace_back(data + RandomName()));
    fs::create_symlink(fs::absolute(others[0]), others.emplace_back(data + RandomName()));
    SetAge(others.back(), old);
    others.push_back(Put(Path() + "pool/" + std::string(32, 'c'), BlockSize(), old));
    fs::create_directory_symlink("pool", Path() + "cc");
    auto blocks = PutBlocks(Path(), 9);
    const auto store = MakeStore(MakeConfig(10));
    AwaitCheck();
    ASSERT_EQ(CountThere(others), others.size());
    ASSERT_EQ(CountThere(blocks), 9);
    for (const auto& path : PutBlocks(Path(), 5, 10)) { blocks.push_back(path); }
    ASSERT_TRUE(Soon([&] { return YoungestAreThere(blocks, 5); }));
    ASSERT_EQ(CountThere(others), others.size());
}

TEST_F(UCPosixGcBlocksTest, OldTemporariesGo)
{
    const auto store = MakeStore(MakeConfig(10));
    constexpr time_t hour = 3600;
    const Paths old{Put(Path() + "data/" + RandomName() + ".tmp", 1, 2 * hour),
                    Put(Path() + ".tmp/" + RandomName(), 1, 2 * hour)};
    const Paths young{Put(Path() + "data/" + RandomName() + ".tmp", 1, hour / 2),
                      Put(Path() + ".tmp/" + RandomName(), 1, hour / 2)};
    ASSERT_TRUE(Soon([&] { return CountThere(old) == 0; }));
    ASSERT_EQ(CountThere(young), young.size());
}

TEST_F(UCPosixGcBlocksTest, RestsWhenNothingCanBeRemoved)
{
    constexpr uid_t nobody = 65534;
    const auto blocks = PutBlocks(Path(), 30);
    ASSERT_EQ(chmod((Path() + "data").c_str(), 0555), 0);
    const auto root = geteuid() == 0;
    if (root) { ASSERT_EQ(chown(Path().c_str(), nobody, -1), 0); }
    if (root && seteuid(nobody) != 0) { GTEST_SKIP() << "run it as another user than root"; }
    auto store = MakeStore(MakeConfig(10));
    IoFault::SleepMs(500);
    const auto before = CpuSeconds();
    AwaitCheck();
    EXPECT_LT(CpuSeconds() - before, 0.3);
    store.reset();
    if (root) { ASSERT_EQ(seteuid(0), 0); }
    ASSERT_EQ(chmod((Path() + "data").c_str(), 0755), 0);
    ASSERT_EQ(CountThere(blocks), blocks.size());
}

TEST_F(UCPosixGcBlocksTest, FoldersNeedNotBeThere)
{
    auto config = MakeConfig(10);
    config.SetNumber("data_dir_shard_bytes", 3);
    config.Set("data_dir_on_demand", true);
    const auto store = MakeStore(config);
    AwaitCheck();
    Paths blocks;
    for (size_t i = 12; i > 0; i--) {
        const auto name = RandomName();
        blocks.push_back(Put(Path() + name.substr(0, 3) + "/" + name, BlockSize(), 100 * i));
    }
    ASSERT_TRUE(Soon([&] { return YoungestAreThere(blocks, 5); }));
}

TEST_F(UCPosixGcBlocksTest, ManyInOneFolderGoInParts)
{
    auto config = MakeConfig(10);
    config.SetNumber("posix_gc_max_recycle_count_per_shard", 3);
    const auto blocks = PutBlocks(Path(), 30);
    const auto store = MakeStore(config);
    ASSERT_TRUE(Soon([&] { return CountThere(blocks) < 10; }));
    ASSERT_GE(CountThere(blocks), 5);
}

TEST_F(UCPosixGcBlocksTest, ALookupOnlyStoreCollectsBlocksOfAnySize)
{
    auto config = MakeConfig(10);
    config.SetNumber("device_id", -1);
    const Paths blocks{Put(Path() + "data/" + RandomName(), 8 * BlockSize(), 300),
                       Put(Path() + "data/" + RandomName(), BlockSize(), 200),
                       Put(Path() + "data/" + RandomName(), 3 * BlockSize(), 100)};
    const auto store = MakeStore(config);
    ASSERT_TRUE(Soon([&] { return YoungestAreThere(blocks, 2); }));
}

TEST_F(UCPosixGcBlocksTest, EndsWithItsStore)
{
    PutBlocks(Path(), 3000);
    auto store = MakeStore(MakeConfig(10));
    const auto start = std::chrono::steady_clock::now();
    store.reset();
    ASSERT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(3));
}

TEST_F(UCPosixGcBlocksTest, ABlockIsWholeOrMissedWhileOthersGo)
{
    constexpr size_t n = 64;
    tensorSize_ = 65536;
    const auto store = MakeStore(MakeConfig(n / 2));
    const auto blocks = MakeBlocks(n);
    HostPages from{n, BlockSize()};
    from.Number();
    std::atomic<bool> over{false};
    std::atomic<size_t> misses{0}, torn{0};
    const auto load = [&] {
        HostPages to{n, BlockSize()};
        while (!over) {
            std::fill(to.Data(), to.Data() + n * BlockSize(), 0);
            const auto task = store->Load(MakeDesc(blocks, to)).Value();
            const auto moved = store->WaitBlocks(task).Value().moved;
            for (size_t i = 0; i < n; i++) {
                const auto at = i * BlockSize();
                misses += !moved[i];
                torn += moved[i] && !std::equal(from.Data() + at, from.Data() + at + BlockSize(),
                                                to.Data() + at);
            }
        }
    };
    std::thread first{load}, second{load};
    for (size_t i = 0; i < 1000 && (i < 200 || misses == 0); i++, IoFault::SleepMs(20)) {
        EXPECT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    }
    over = true;
    first.join();
    second.join();
    ASSERT_EQ(torn, 0);
    ASSERT_GT(misses, 0);
}
