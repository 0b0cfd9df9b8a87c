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
#include <sys/stat.h>
#include <unistd.h>
#include "posix/cc/space_layout.h"
#include "posix_store_base.h"

using UC::Test::Detail::HostPages;

class UCPosixPermissionTest : public UC::Test::Detail::PosixStoreBase {
protected:
    std::string File(const UC::Detail::BlockId& block) const
    {
        UC::PosixStore::Config config;
        config.storageBackends.push_back(Path());
        config.dataDirShardBytes = 1;
        UC::PosixStore::SpaceLayout layout;
        EXPECT_EQ(layout.Setup(config), UC::Status::OK());
        return layout.DataFilePath(block, false);
    }
};

TEST_F(UCPosixPermissionTest, TheGroupReadsBlocksWhateverTheUmask)
{
    auto store = MakeStore();
    for (const mode_t mask : {0077, 0000}) {
        const auto blocks = MakeBlocks(1);
        HostPages from{1, BlockSize(), 7};
        const auto before = umask(mask);
        const auto s = Dump(*store, blocks, from);
        umask(before);
        ASSERT_EQ(s, UC::Status::OK());
        struct stat st;
        ASSERT_EQ(stat(File(blocks[0]).c_str(), &st), 0);
        ASSERT_EQ(st.st_mode & 0777, 0640);
    }
}

TEST_F(UCPosixPermissionTest, ABlockThatCannotBeReadIsNotThere)
{
    constexpr uid_t nobody = 65534;
    const auto root = geteuid() == 0;
    if (root) { ASSERT_EQ(chown(Path().c_str(), nobody, -1), 0); }
    if (root && seteuid(nobody) != 0) { GTEST_SKIP() << "run it as another user than root"; }
    {
        auto store = MakeStore();
        const auto blocks = MakeBlocks(2);
        HostPages from{2, BlockSize(), 7};
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
        ASSERT_EQ(chmod(File(blocks[1]).c_str(), 0), 0);
        const std::vector<uint8_t> one{true, false}, both{true, true};
        ASSERT_EQ(store->Lookup(blocks.data(), 2).Value(), one);
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
        ASSERT_EQ(store->Lookup(blocks.data(), 2).Value(), both);
    }
    if (root) { ASSERT_EQ(seteuid(0), 0); }
}
