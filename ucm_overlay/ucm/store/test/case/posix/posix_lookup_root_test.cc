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
#include <atomic>
#include <cerrno>
#include <dlfcn.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "detail/path_base.h"
#include "detail/types_helper.h"
#include "posix/cc/space_manager.h"

namespace {

std::atomic<size_t> g_nBelowRoot{0};

}  // namespace

/** Before libc's: counted, and shown to an IoFault as an lstat of the whole path. */
extern "C" int fstatat(int at, const char* path, struct stat* st, int flags)
{
    using Fn = int(int, const char*, struct stat*, int);
    static auto* real = reinterpret_cast<Fn*>(dlsym(RTLD_NEXT, "fstatat"));
    auto whole = std::string{path};
    if (at != AT_FDCWD && path[0] != '/') {
        g_nBelowRoot++;
        char root[PATH_MAX];
        const auto n = readlink(fmt::format("/proc/self/fd/{}", at).c_str(), root, sizeof(root));
        if (n > 0) { whole = fmt::format("{}/{}", std::string_view(root, n), path); }
    }
    if (lstat(whole.c_str(), st) != 0) { return -1; }
    return real(at, path, st, flags);
}

class UCPosixLookupRootTest : public UC::Test::Detail::PathBase {
    using BlockId = UC::Detail::BlockId;
    using TypesHelper = UC::Test::Detail::TypesHelper;

protected:
    static constexpr size_t kMany = 64;

    void Setup(UC::PosixStore::SpaceManager& spaceMgr, std::vector<std::string> roots)
    {
        UC::PosixStore::Config config;
        config.deviceId = 0;
        config.blockSize = 1;
        config.dataDirShardBytes = 1;
        for (const auto& root : roots) {
            std::filesystem::create_directories(Path() + root);
            config.storageBackends.push_back(Path() + root);
        }
        ASSERT_EQ(spaceMgr.Setup(config), UC::Status::OK());
    }
    /** Blocks, of which every other one is there. */
    static std::vector<BlockId> Store(const UC::PosixStore::SpaceManager& spaceMgr, size_t n)
    {
        std::vector<BlockId> blocks(n);
        for (size_t i = 0; i < n; i++) {
            blocks[i] = TypesHelper::MakeBlockIdRandomly();
            if (i % 2 == 0) {
                std::ofstream{spaceMgr.GetLayout()->DataFilePath(blocks[i], false)} << 'x';
            }
        }
        return blocks;
    }
    static std::vector<uint8_t> EveryOther(size_t n)
    {
        std::vector<uint8_t> founds(n);
        for (size_t i = 0; i < n; i += 2) { founds[i] = true; }
        return founds;
    }
    static std::vector<uint8_t> Lookup(UC::PosixStore::SpaceManager& spaceMgr,
                                       const std::vector<BlockId>& blocks)
    {
        g_nBelowRoot = 0;
        return spaceMgr.Lookup(blocks.data(), blocks.size()).Value();
    }
    static ptrdiff_t Descriptors()
    {
        const std::filesystem::directory_iterator all{"/proc/self/fd"};
        return std::distance(begin(all), end(all));
    }
};

TEST_F(UCPosixLookupRootTest, ManyKeysAreFoundBelowTheOpenRoots)
{
    UC::PosixStore::SpaceManager spaceMgr;
    Setup(spaceMgr, {"first", "second", "third"});
    const auto blocks = Store(spaceMgr, kMany);
    const auto before = Descriptors();
    ASSERT_EQ(Lookup(spaceMgr, blocks), EveryOther(kMany));
    ASSERT_EQ(g_nBelowRoot, kMany);
    ASSERT_EQ(Descriptors(), before);
    ASSERT_EQ(spaceMgr.LookupOnPrefix(blocks.data(), kMany).Value(), 0);
    ASSERT_EQ(Descriptors(), before);
}

TEST_F(UCPosixLookupRootTest, ForFewKeysNothingIsOpened)
{
    UC::PosixStore::SpaceManager spaceMgr;
    Setup(spaceMgr, {"root"});
    const auto blocks = Store(spaceMgr, 2);
    ASSERT_EQ(Lookup(spaceMgr, blocks), EveryOther(2));
    ASSERT_EQ(g_nBelowRoot, 0);
}

TEST_F(UCPosixLookupRootTest, AnotherFolderInTheRootsPlaceIsSeen)
{
    UC::PosixStore::SpaceManager spaceMgr;
    Setup(spaceMgr, {"root"});
    const auto blocks = Store(spaceMgr, kMany);
    ASSERT_EQ(Lookup(spaceMgr, blocks), EveryOther(kMany));
    std::filesystem::rename(Path() + "root", Path() + "away");
    ASSERT_EQ(Lookup(spaceMgr, blocks), std::vector<uint8_t>(kMany));
    std::filesystem::create_directory(Path() + "root");
    ASSERT_EQ(Lookup(spaceMgr, blocks), std::vector<uint8_t>(kMany));
    std::filesystem::remove(Path() + "root");
    std::filesystem::create_directory_symlink("away", Path() + "root");
    ASSERT_EQ(Lookup(spaceMgr, blocks), EveryOther(kMany));
}

TEST_F(UCPosixLookupRootTest, WithoutADescriptorWholePathsServe)
{
    UC::PosixStore::SpaceManager spaceMgr;
    Setup(spaceMgr, {"root"});
    const auto blocks = Store(spaceMgr, kMany);
    rlimit limit;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlimit none{3, limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    const auto founds = Lookup(spaceMgr, blocks);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ASSERT_EQ(founds, EveryOther(kMany));
    ASSERT_EQ(g_nBelowRoot, 0);
}
