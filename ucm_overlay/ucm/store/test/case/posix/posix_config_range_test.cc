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
#include <fstream>
#include "detail/path_base.h"
#include "ucmstore_v1.h"

extern "C" UC::StoreV1* MakePosixStore();

class UCPosixConfigRangeTest : public UC::Test::Detail::PathBase {
protected:
    UC::Detail::Dictionary Valid() const
    {
        UC::Detail::Dictionary config;
        config.Set("storage_backends", std::vector<std::string>{Path()});
        config.SetNumber("device_id", 0);
        config.SetNumber("tensor_size", 4096);
        config.SetNumber("shard_size", 8192);
        config.SetNumber("block_size", 16384);
        config.SetNumber("posix_data_trans_concurrency", 1);
        config.SetNumber("posix_lookup_concurrency", 1);
        config.SetNumber("data_dir_shard_bytes", 0);
        config.SetNumber("timeout_ms", 0);
        return config;
    }
    static std::string Refusal(const UC::Detail::Dictionary& config)
    {
        std::unique_ptr<UC::StoreV1> store{MakePosixStore()};
        auto s = store->Setup(config);
        return s == UC::Status::InvalidParam() ? s.Message() : "not refused: " + s.ToString();
    }
    std::string Refusal(const char* key, ssize_t value) const
    {
        auto config = Valid();
        config.SetNumber(key, value);
        return Refusal(config);
    }
    std::string Refusal(std::vector<std::string> backends) const
    {
        auto config = Valid();
        config.Set("storage_backends", backends);
        return Refusal(config);
    }
};

TEST_F(UCPosixConfigRangeTest, ValueOutOfRangeIsNamed)
{
    EXPECT_EQ(Refusal(Valid()), "not refused: 0");
    EXPECT_EQ(Refusal("tensor_size", 0), "config key(tensor_size): expected 1 or more, found 0");
    EXPECT_EQ(Refusal("shard_size", 4097),
              "config key(shard_size): expected a multiple of tensor_size(4096), found 4097");
    EXPECT_EQ(Refusal("block_size", 0),
              "config key(block_size): expected a multiple of shard_size(8192), found 0");
    EXPECT_EQ(Refusal("data_dir_shard_bytes", 6),
              "config key(data_dir_shard_bytes): expected 0 to 5, found 6");
    EXPECT_EQ(Refusal("posix_lookup_concurrency", -1),
              "config key(posix_lookup_concurrency): expected 0 or more, found -1");
}

TEST_F(UCPosixConfigRangeTest, WrongTypeIsAStatusNotAnException)
{
    auto config = Valid();
    config.Set("io_direct", std::string("no"));
    EXPECT_EQ(Refusal(config), "config key(io_direct): expected True or False, found 'no'");
}

TEST_F(UCPosixConfigRangeTest, BackendThatIsNoFolderIsNamed)
{
    const auto missing = Path() + "missing";
    const auto file = Path() + "file";
    std::ofstream{file}.put('x');
    EXPECT_EQ(Refusal(std::vector<std::string>{}),
              "config key(storage_backends): expected one folder or more, found []");
    EXPECT_EQ(Refusal({Path(), ""}),
              "config key(storage_backends): expected names of folders, found [\"" + Path() +
                  "\", \"\"]");
    EXPECT_EQ(Refusal({missing}), "config key(storage_backends): cannot use " + missing +
                                      ": No such file or directory");
    EXPECT_EQ(Refusal({Path(), file}),
              "config key(storage_backends): cannot use " + file + ": Not a directory");
}
