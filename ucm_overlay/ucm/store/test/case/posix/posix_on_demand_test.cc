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
#include "posix_store_base.h"

namespace fs = std::filesystem;
using UC::Test::Detail::HostPages;

class UCPosixOnDemandTest : public UC::Test::Detail::PosixStoreBase {
protected:
    UC::Detail::Dictionary MakeConfig() const
    {
        auto config = PosixStoreBase::MakeConfig();
        config.Set("data_dir_on_demand", true);
        return config;
    }
    size_t Folders() const
    {
        const auto entries = fs::recursive_directory_iterator{Path()};
        return std::count_if(fs::begin(entries), fs::end(entries),
                             [](const auto& entry) { return entry.is_directory(); });
    }
};

TEST_F(UCPosixOnDemandTest, AFolderComesWithItsFirstBlock)
{
    for (auto round = 0; round < 2; round++) {
        auto store = MakeStore(MakeConfig());
        ASSERT_EQ(Folders(), 0);
        const auto blocks = MakeBlocks(64);
        HostPages from{64, BlockSize()}, to{64, BlockSize()};
        from.Number();
        ASSERT_EQ(store->Lookup(blocks.data(), 64).Value(), std::vector<uint8_t>(64));
        ASSERT_EQ(Dump(*store, {blocks[0]}, from), UC::Status::OK());
        ASSERT_LE(Folders(), 2);  // .tmp is the other one, where temporaries have names
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
        ASSERT_EQ(Load(*store, blocks, to), UC::Status::OK());
        ASSERT_EQ(to.Bytes(), from.Bytes());
        ASSERT_LE(Folders(), 17);
        for (const auto& entry : fs::directory_iterator{Path()}) { fs::remove_all(entry); }
    }
}

TEST_F(UCPosixOnDemandTest, ABackendThatIsNoFolderIsRefused)
{
    auto config = MakeConfig();
    config.Set("storage_backends", std::vector<std::string>{Path() + "missing"});
    std::unique_ptr<UC::StoreV1> store{MakePosixStore()};
    const auto s = store->Setup(config);
    ASSERT_TRUE(s.Failure());
    ASSERT_NE(s.ToString().find(Path() + "missing"), std::string::npos);
}
