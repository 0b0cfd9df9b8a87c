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
#include <cstring>
#include <sys/wait.h>
#include "posix_gc_base.h"

using UC::Test::Detail::HostPages;
using UC::Test::Detail::IoFault;

class UCPosixGcSiblingsTest : public UC::Test::Detail::PosixGcBase {
protected:
    struct Pool {
        std::string root;
        size_t blockSize;
    };

    Pool MakePool(const std::string& name, size_t size, size_t number = 1) const
    {
        const auto root = fmt::format("{}pools/{}_{}x{}/", Path(), name, size, number);
        std::filesystem::create_directories(root);
        return {root, size * number};
    }
    /** A pool's store; all of them collect from `mb` MiB on, down to half of it. */
    static UC::Detail::Dictionary MakeConfig(const Pool& pool, size_t mb)
    {
        UC::Detail::Dictionary config;
        config.Set("storage_backends", std::vector<std::string>{pool.root});
        config.SetNumber("device_id", 0);
        for (const auto key : {"tensor_size", "shard_size", "block_size"}) {
            config.SetNumber(key, pool.blockSize);
        }
        config.SetNumber("data_dir_shard_bytes", 2);
        config.Set("data_dir_on_demand", true);
        config.SetNumber("posix_capacity_gb", 1);
        config.Set("posix_gc_siblings", true);
        config.Set("posix_gc_trigger_threshold_ratio", mb / 1024.0);
        config.Set("posix_gc_recycle_percent", 0.5);
        config.SetNumber("posix_gc_check_interval_sec", 1);
        return config;
    }
    static std::string PutBlock(const Pool& pool, time_t age)
    {
        const auto name = RandomName();
        return Put(pool.root + name.substr(0, 2) + "/" + name, pool.blockSize, age);
    }
    /** Stores new blocks, and loads any that were stored: 0 when each was whole or a miss. */
    int WriteAndRead(const Pool& pool, size_t mb)
    {
        tensorSize_ = pool.blockSize;
        const auto store = MakeStore(MakeConfig(pool, mb));
        const auto bytesOf = [](const auto& block) { return std::to_integer<char>(block[0]); };
        HostPages pages{1, tensorSize_};
        Blocks stored;
        for (size_t i = 0; i < 120; i++, IoFault::SleepMs(30)) {
            stored.push_back(MakeBlocks(1)[0]);
            memset(pages.Data(), bytesOf(stored.back()), tensorSize_);
            if (Dump(*store, {stored.back()}, pages).Failure()) { return 1; }
            const auto& any = stored[rand() % stored.size()];
            const auto task = store->Load(MakeDesc({any}, pages)).Value();
            const auto moved = store->WaitBlocks(task).Value().moved[0];
            if (moved && pages.Bytes() != std::string(tensorSize_, bytesOf(any))) { return 2; }
        }
        return 0;
    }
};

TEST_F(UCPosixGcSiblingsTest, OneCapacityForAllTheOldestFirst)
{
    const auto small = MakePool("swa", 65536), large = MakePool("c4_state", 65536, 4);
    const auto unused = MakePool("former", 131072);
    Paths blocks;
    for (time_t age = 4800; age > 0;) {
        for (const auto& pool : {small, large, unused}) {
            blocks.push_back(PutBlock(pool, age));
            age -= 100;
        }
    }
    Paths others;
    for (const auto folder :
         {"pools/notes/", "pools/swa_65536/", "pools/swa_65536x1.old/", "pools/swa_ 65536x1/",
          "pools/swa_65536x+1/", "pools/swa_-65536x-1/", "pools/swa_281474976710657x65536/", ""}) {
        const auto name = RandomName();
        others.push_back(Put(Path() + folder + name.substr(0, 2) + "/" + name, 65536, 90000));
    }
    // 16 times 448 KiB make 7 MiB; the last 4 times and the 128 KiB before fit into 2 MiB.
    const auto first = MakeStore(MakeConfig(small, 4)), second = MakeStore(MakeConfig(large, 4));
    ASSERT_TRUE(Soon([&] { return YoungestAreThere(blocks, 13); }));
    AwaitCheck();
    ASSERT_TRUE(YoungestAreThere(blocks, 13));
    ASSERT_EQ(CountThere(others), others.size());
}

TEST_F(UCPosixGcSiblingsTest, ALinkIsNoSibling)
{
    const auto pool = MakePool("swa", 65536);
    const Pool outside{Path() + "outside/", pool.blockSize};
    Paths blocks, others;
    for (time_t age = 2000; age > 0; age -= 100) {
        others.push_back(PutBlock(outside, age + 90000));
        blocks.push_back(PutBlock(pool, age));
    }
    others.push_back(Put(outside.root + ".tmp/" + RandomName(), 1, 90000));
    std::filesystem::create_directory_symlink("../outside", Path() + "pools/former_65536x1");
    const auto store = MakeStore(MakeConfig(pool, 1));
    ASSERT_TRUE(Soon([&] { return YoungestAreThere(blocks, 8); }));
    AwaitCheck();
    ASSERT_EQ(CountThere(others), others.size());
    ASSERT_TRUE(YoungestAreThere(blocks, 8));
}

TEST_F(UCPosixGcSiblingsTest, ProcessesThatWriteAndReadStayWithin)
{
    const std::vector<Pool> pools{MakePool("swa", 65536), MakePool("mamba", 262144)};
    std::vector<pid_t> children;
    for (size_t i = 0; i < 4; i++) {
        MakeBlocks(1000);  // a child goes on with other random names than the last one
        children.push_back(fork());
        if (children.back() == 0) { _exit(WriteAndRead(pools[i % 2], 16)); }
    }
    for (const auto pid : children) {
        int status = 0;
        waitpid(pid, &status, 0);
        EXPECT_EQ(status, 0);
    }
    const auto held = [&] {
        size_t bytes = 0;
        for (const auto& file : std::filesystem::recursive_directory_iterator{Path() + "pools"}) {
            if (file.is_regular_file()) { bytes += file.file_size(); }
        }
        return bytes;
    };
    const auto store = MakeStore(MakeConfig(pools[0], 16));
    ASSERT_TRUE(Soon([&] { return held() < 16 << 20; }));
    ASSERT_GT(held(), 7 << 20);
}
