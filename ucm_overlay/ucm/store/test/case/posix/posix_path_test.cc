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
#include "detail/path_base.h"
#include "posix/cc/space_layout.h"

class UCPosixPathTest : public UC::Test::Detail::PathBase {};

TEST_F(UCPosixPathTest, OnePathForEveryFolderDepth)
{
    UC::Detail::BlockId block;
    for (size_t i = 0; i < block.size(); i++) { block[i] = std::byte(0x10 * i + 15 - i); }
    const std::string name = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";
    for (const auto& [depth, folder] : std::vector<std::pair<size_t, std::string>>{
             {0, "data"}, {1, "0"}, {2, "0f"}, {3, "0f1"}}) {
        UC::PosixStore::Config config;
        config.storageBackends.push_back(Path());
        config.dataDirShardBytes = depth;
        UC::PosixStore::SpaceLayout layout;
        ASSERT_EQ(layout.Setup(config), UC::Status::OK());
        ASSERT_EQ(layout.DataFilePath(block, false), Path() + folder + "/" + name);
        ASSERT_EQ(layout.DataFilePath(block, true), Path() + folder + "/" + name + ".tmp");
    }
}
