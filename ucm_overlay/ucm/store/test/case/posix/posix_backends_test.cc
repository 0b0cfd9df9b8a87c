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
#include "detail/path_base.h"
#include "posix/cc/space_manager.h"

class UCPosixBackendsTest : public UC::Test::Detail::PathBase {};

TEST_F(UCPosixBackendsTest, MakesTheFoldersOfEveryBackend)
{
    namespace fs = std::filesystem;
    UC::PosixStore::Config config;
    for (const auto* name : {"first", "second", "second/"}) {
        fs::create_directories(Path() + name);
        config.storageBackends.push_back(Path() + name);
    }
    config.dataDirShardBytes = 1;
    for (auto round = 0; round < 2; round++) {
        UC::PosixStore::SpaceManager spaceMgr;
        ASSERT_EQ(spaceMgr.Setup(config), UC::Status::OK());
        ASSERT_TRUE(fs::is_directory(Path() + "first/f"));
        ASSERT_TRUE(fs::is_directory(Path() + "second/f"));
    }
}
