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
#include <gtest/gtest.h>
#include "type/dictionary.h"

class UCPosixConfigTypeTest : public ::testing::Test {
protected:
    UC::Detail::Dictionary config_;

    template <typename Fn>
    static std::string Refusal(Fn&& fn)
    {
        try {
            fn();
        } catch (const std::invalid_argument& e) {
            return e.what();
        }
        return "not refused";
    }
};

TEST_F(UCPosixConfigTypeTest, WrongTypeNamesKeyFormAndValue)
{
    config_.Set("timeout_ms", 3000.0);
    config_.Set("io_direct", std::string("yes"));
    config_.Set("storage_backends", std::string("/tmp"));
    size_t number = 7;
    auto flag = false;
    std::vector<std::string> list;
    EXPECT_EQ(Refusal([&] { config_.GetNumber("timeout_ms", number); }),
              "config key(timeout_ms): expected an integer, found 3000 (a float)");
    EXPECT_EQ(Refusal([&] { config_.Get("io_direct", flag); }),
              "config key(io_direct): expected True or False, found 'yes'");
    EXPECT_EQ(Refusal([&] { config_.Get("storage_backends", list); }),
              "config key(storage_backends): expected a list of strings, found '/tmp'");
    EXPECT_EQ(number, 7);
}

TEST_F(UCPosixConfigTypeTest, NumberThatDoesNotFitIsRefused)
{
    config_.SetNumber("concurrency", -1);
    config_.SetNumber("device_id", ssize_t(1) << 40);
    config_.Set("sizes", std::vector<ssize_t>{4096, -1});
    size_t number = 0;
    int32_t device = 0;
    std::vector<size_t> sizes;
    EXPECT_EQ(Refusal([&] { config_.GetNumber("concurrency", number); }),
              "config key(concurrency): expected 0 or more, found -1");
    EXPECT_EQ(Refusal([&] { config_.GetNumber("device_id", device); }),
              "config key(device_id): expected a smaller integer, found 1099511627776");
    EXPECT_EQ(Refusal([&] { config_.GetNumbers("sizes", sizes); }),
              "config key(sizes): expected 0 or more, found -1");
}

TEST_F(UCPosixConfigTypeTest, WhatFitsIsTaken)
{
    config_.SetNumber("ratio", 1);
    config_.SetNumber("device_id", -1);
    config_.Set("cores", std::vector<std::any>{});
    auto ratio = 0.5;
    int32_t device = 0;
    std::vector<ssize_t> cores;
    config_.Get("ratio", ratio);
    config_.GetNumber("device_id", device);
    config_.Get("cores", cores);
    EXPECT_EQ(ratio, 1.0);
    EXPECT_EQ(device, -1);
    EXPECT_TRUE(cores.empty());
}
