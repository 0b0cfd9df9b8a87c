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
#include <fstream>
#include <gtest/gtest.h>
#include <thread>
#include "detail/random.h"
#include "logger/logger.h"

namespace fs = std::filesystem;

class UCPosixLoggerTest : public ::testing::Test {
protected:
    struct Seen {
        bool folder;
        size_t lines;
    };

    // A fresh folder and, as each death test starts a fresh process, a fresh logger.
    static Seen LogInto(const char* level, const std::function<void(void)>& log)
    {
        UC::Test::Detail::Random random;
        const auto root = fs::temp_directory_path() / ("uclog_" + random.RandomString(20));
        setenv("UC_LOGGER_LEVEL", level, 1);
        UC::Logger::Setup(root, 3, 5);
        log();
        UC::Logger::Flush();
        Seen seen{fs::exists(root), 0};
        std::ifstream file{root / std::to_string(getpid()) / "ucm.log"};
        for (std::string line; std::getline(file, line);) { ++seen.lines; }
        fs::remove_all(root);
        return seen;
    }
    void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(UCPosixLoggerTest, OffLeavesNoFolder)
{
    auto body = [] {
        auto seen = LogInto("off", [] { UC_ERROR("Nobody reads this."); });
        exit(seen.folder ? 1 : 0);
    };
    EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "");
}

TEST_F(UCPosixLoggerTest, FolderComesWithTheFirstMessage)
{
    auto body = [] {
        auto seen = LogInto("info", [] {
            UC_DEBUG("Below the level.");
            UC::Logger::isEnabledFor(UC::Logger::Level::ERROR);
        });
        if (seen.folder) { exit(1); }
        exit(0);
    };
    EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "");
    auto bodyWithMessage = [] {
        auto seen = LogInto("info", [] { UC_INFO("At the level."); });
        exit(seen.lines == 1 ? 0 : 1);
    };
    EXPECT_EXIT(bodyWithMessage(), ::testing::ExitedWithCode(0), "");
}

TEST_F(UCPosixLoggerTest, ThreadsShareOneLogger)
{
    auto body = [] {
        constexpr size_t nThread = 16;
        constexpr size_t nMessage = 4;
        auto seen = LogInto("info", [] {
            std::vector<std::thread> threads;
            for (size_t i = 0; i < nThread; i++) {
                threads.emplace_back([] {
                    for (size_t j = 0; j < nMessage; j++) { UC_INFO_UNLIMITED("Message {}.", j); }
                });
            }
            for (auto& thread : threads) { thread.join(); }
        });
        exit(seen.lines == nThread * nMessage ? 0 : 1);
    };
    EXPECT_EXIT(body(), ::testing::ExitedWithCode(0), "");
}
