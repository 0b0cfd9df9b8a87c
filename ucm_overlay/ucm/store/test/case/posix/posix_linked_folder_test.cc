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
#include "posix_io_fault.h"
#include "posix_store_base.h"

namespace fs = std::filesystem;
using UC::Test::Detail::HostPages;
using UC::Test::Detail::NamedFiles;

class UCPosixLinkedFolderTest : public UC::Test::Detail::PosixStoreBase {
protected:
    UC::Detail::Dictionary MakeConfig(const std::string& engine) const
    {
        auto config = PosixStoreBase::MakeConfig();
        config.Set("data_dir_on_demand", true);
        config.Set("posix_io_engine", engine);
        return config;
    }
    fs::path Outside() const { return Path() + "outside"; }
    /** `folder` of the root, or else the block's, is a link when the store comes to write there. */
    void NothingIsWritten(const std::string& folder, const std::string& engine) const
    {
        auto store = MakeStore(MakeConfig(engine));
        const auto blocks = MakeBlocks(1);
        HostPages from{1, BlockSize(), 7}, to{1, BlockSize(), 9};
        const auto place =
            folder.empty() ? fs::path{File(blocks[0])}.parent_path() : fs::path{Path() + folder};
        fs::remove_all(place);
        fs::create_directory(Outside());
        fs::create_directory_symlink(fs::absolute(Outside()), place);
        const auto s = Dump(*store, blocks, from);
        ASSERT_NE(s.ToString().find("ELOOP"), std::string::npos) << s.ToString();
        ASSERT_TRUE(fs::is_empty(Outside()));
        fs::remove(place);
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
        ASSERT_EQ(Load(*store, blocks, to), UC::Status::OK());
        ASSERT_EQ(to.Bytes(), from.Bytes());
    }
};

TEST_F(UCPosixLinkedFolderTest, NoTemporaryIsWrittenThroughIt)
{
    NamedFiles named;
    for (const auto engine : {"psync", "aio"}) { NothingIsWritten(".tmp", engine); }
}

TEST_F(UCPosixLinkedFolderTest, NoBlockIsPublishedThroughIt)
{
    for (const auto engine : {"psync", "aio"}) {
        NothingIsWritten("", engine);
        NamedFiles named;
        NothingIsWritten("", engine);
    }
}

TEST_F(UCPosixLinkedFolderTest, ALinkToTheRootIsTheOperators)
{
    fs::create_directory(Path() + "disk");
    fs::create_directory_symlink("disk", Path() + "root");
    auto config = MakeConfig("psync");
    config.Set("storage_backends", std::vector<std::string>{Path() + "root"});
    config.Set("posix_sync", std::string{"full"});
    auto store = MakeStore(config);
    const auto blocks = MakeBlocks(4);
    HostPages from{4, BlockSize(), 7}, to{4, BlockSize(), 9};
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    ASSERT_EQ(Load(*store, blocks, to), UC::Status::OK());
    ASSERT_EQ(to.Bytes(), from.Bytes());
    const fs::path block{File(blocks[0])};
    ASSERT_TRUE(
        fs::exists(fs::path{Path()} / "disk" / block.parent_path().filename() / block.filename()));
}
