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
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>
#include "posix_store_base.h"

using UC::Test::Detail::HostPages;

class UCPosixLinkTest : public UC::Test::Detail::PosixStoreBase {
protected:
    void LinkIsNoBlock(const std::string& engine) const
    {
        auto config = MakeConfig();
        config.Set("posix_io_engine", engine);
        auto store = MakeStore(config);
        const auto blocks = MakeBlocks(1);
        HostPages from{1, BlockSize(), 7}, to{1, BlockSize(), 9};
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
        Plant(blocks[0]);
        ASSERT_FALSE(store->Lookup(blocks.data(), 1).Value()[0]);
        ASSERT_TRUE(Load(*store, blocks, to).Failure());
        ASSERT_EQ(to.Bytes(), std::string(BlockSize(), 9));
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
        ASSERT_EQ(Load(*store, blocks, to), UC::Status::OK());
        ASSERT_EQ(to.Bytes(), from.Bytes());
        ASSERT_EQ(Outside(), std::string(BlockSize(), 's'));
    }

private:
    std::string Elsewhere() const { return Path() + "elsewhere"; }
    std::string Outside() const
    {
        std::stringstream text;
        text << std::ifstream{Elsewhere()}.rdbuf();
        return text.str();
    }
    /** A whole page elsewhere, and a link to it in the block's place. */
    void Plant(const UC::Detail::BlockId& block) const
    {
        std::ofstream{Elsewhere()} << std::string(BlockSize(), 's');
        ASSERT_EQ(unlink(File(block).c_str()), 0);
        ASSERT_EQ(symlink("../elsewhere", File(block).c_str()), 0);
    }
};

TEST_F(UCPosixLinkTest, PsyncDoesNotFollowIt) { LinkIsNoBlock("psync"); }

TEST_F(UCPosixLinkTest, AioDoesNotFollowIt) { LinkIsNoBlock("aio"); }
