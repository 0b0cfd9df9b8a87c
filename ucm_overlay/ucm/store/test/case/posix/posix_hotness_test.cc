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
#include <ctime>
#include <filesystem>
#include <fmt/ranges.h>
#include <fstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <thread>
#include <utime.h>
#include "detail/path_base.h"
#include "detail/types_helper.h"
#include "hotness_tracker.h"

class UCPosixHotnessTest : public UC::Test::Detail::PathBase {
protected:
    UC::PosixStore::SpaceLayout layout_;
    static constexpr auto oneSecond = std::chrono::seconds(1);

    void SetUp() override
    {
        PathBase::SetUp();
        UC::PosixStore::Config config;
        config.storageBackends = {Path()};
        config.dataDirShardBytes = 0;
        ASSERT_EQ(layout_.Setup(config), UC::Status::OK());
        std::filesystem::create_directories(Path() + "data");
    }
    std::string MakeOldFile(const UC::Detail::BlockId& block) const
    {
        auto path = layout_.DataFilePath(block, false);
        std::ofstream{path}.put('x');
        utimbuf longAgo{1, 1};
        utime(path.c_str(), &longAgo);
        return path;
    }
    static bool BecomesFresh(const std::string& path)
    {
        for (auto i = 0; i < 500; i++) {
            struct stat st;
            if (stat(path.c_str(), &st) == 0 && st.st_mtime > 1) { return true; }
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        return false;
    }
};

TEST_F(UCPosixHotnessTest, TouchedBlocksBecomeFresh)
{
    UC::PosixStore::HotnessTracker tracker;
    ASSERT_EQ(tracker.Setup(&layout_), UC::Status::OK());
    for (auto round = 0; round < 3; round++) {
        auto block = UC::Test::Detail::TypesHelper::MakeBlockIdRandomly();
        auto path = MakeOldFile(block);
        tracker.Touch(block);
        EXPECT_TRUE(BecomesFresh(path));
    }
}

TEST_F(UCPosixHotnessTest, IdleTrackerSleeps)
{
    UC::PosixStore::HotnessTracker tracker;
    ASSERT_EQ(tracker.Setup(&layout_), UC::Status::OK());
    rusage before;
    rusage after;
    getrusage(RUSAGE_SELF, &before);
    std::this_thread::sleep_for(oneSecond);
    getrusage(RUSAGE_SELF, &after);
    EXPECT_LT(after.ru_nvcsw - before.ru_nvcsw, 100);
}

TEST_F(UCPosixHotnessTest, EndsAtOnce)
{
    auto begin = std::chrono::steady_clock::now();
    {
        UC::PosixStore::HotnessTracker tracker;
        ASSERT_EQ(tracker.Setup(&layout_), UC::Status::OK());
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, oneSecond);
}
