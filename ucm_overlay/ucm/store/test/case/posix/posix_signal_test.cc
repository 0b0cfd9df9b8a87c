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
#include <csignal>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include "logger/logger.h"

class UCPosixSignalTest : public ::testing::Test {
protected:
    static void RaiseAfterLogging(int signum)
    {
        std::signal(signum, SIG_DFL);
        UC_ERROR("The first message creates the logger.");
        raise(signum);
    }
    void SetUp() override
    {
        // Each death test starts a fresh process, where no logger exists yet.
        GTEST_FLAG_SET(death_test_style, "threadsafe");
        setenv("UC_LOGGER_LEVEL", "off", 1);
    }
};

TEST_F(UCPosixSignalTest, FaultEndsTheProcess)
{
    EXPECT_EXIT(RaiseAfterLogging(SIGSEGV), ::testing::KilledBySignal(SIGSEGV), "");
    EXPECT_EXIT(RaiseAfterLogging(SIGABRT), ::testing::KilledBySignal(SIGABRT), "");
}

TEST_F(UCPosixSignalTest, InterruptIsNotSwallowed)
{
    EXPECT_EXIT(RaiseAfterLogging(SIGINT), ::testing::KilledBySignal(SIGINT), "");
}
