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
#include <sys/wait.h>
#include "posix_gc_base.h"

using UC::Test::Detail::IoFault;

class UCPosixGcLeaderTest : public UC::Test::Detail::PosixGcBase {
protected:
    static constexpr size_t enough = 1000;  // blocks: more than there are

    /** A process whose store collects once there are `nBlock` blocks. */
    pid_t Start(size_t nBlock, const Paths& backends = {}) const
    {
        const auto pid = fork();
        if (pid != 0) {
            AwaitLock(backends.empty() ? Path() : backends[0]);
            return pid;
        }
        const auto store = MakeStore(MakeConfig(nBlock, backends));
        for (;;) { pause(); }
    }
    void AwaitLock(const std::string& root) const
    {
        Soon([&] { return There(fmt::format("{}.gc-{}.lock", root, BlockSize())); });
        IoFault::SleepMs(100);
    }
    static void Kill(pid_t pid)
    {
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
    }
};

TEST_F(UCPosixGcLeaderTest, TheNextOneTakesOverFromADeadProcess)
{
    const auto leader = Start(enough);
    const auto blocks = PutBlocks(Path(), 30);
    const auto store = MakeStore(MakeConfig(10));
    AwaitCheck();
    EXPECT_EQ(CountThere(blocks), blocks.size());
    Kill(leader);
    ASSERT_TRUE(Soon([&] { return YoungestAreThere(blocks, 5); }));
}

TEST_F(UCPosixGcLeaderTest, TheNextOneTakesOverFromADestroyedStore)
{
    auto leader = MakeStore(MakeConfig(enough));
    AwaitLock(Path());
    const auto blocks = PutBlocks(Path(), 30);
    const auto store = MakeStore(MakeConfig(10));
    AwaitCheck();
    ASSERT_EQ(CountThere(blocks), blocks.size());
    leader.reset();
    ASSERT_TRUE(Soon([&] { return YoungestAreThere(blocks, 5); }));
}

TEST_F(UCPosixGcLeaderTest, BlocksOfAnotherSizeHaveTheirOwn)
{
    tensorSize_ = 8192;
    const auto other = MakeStore(MakeConfig(enough));
    AwaitLock(Path());
    tensorSize_ = 4096;
    const auto blocks = PutBlocks(Path(), 30);
    const auto store = MakeStore(MakeConfig(10));
    ASSERT_TRUE(Soon([&] { return YoungestAreThere(blocks, 5); }));
}

TEST_F(UCPosixGcLeaderTest, ASharedBackendHasOneLeader)
{
    const Paths both{Path() + "b/", Path() + "a/"}, one{Path() + "b/"};
    for (const auto& backend : both) { std::filesystem::create_directory(backend); }
    const auto leader = Start(enough, one);
    const auto blocks = PutBlocks(both[1], 30);
    const auto store = MakeStore(MakeConfig(10, both));
    AwaitCheck();
    EXPECT_EQ(CountThere(blocks), blocks.size());
    Kill(leader);
    ASSERT_TRUE(Soon([&] { return YoungestAreThere(blocks, 5); }));
}

TEST_F(UCPosixGcLeaderTest, ABackendOfTwoNamesIsLockedOnce)
{
    const Paths backends{Path() + "a/", Path() + "b/"};
    const auto blocks = PutBlocks(backends[0], 12);
    std::filesystem::create_directory_symlink("a", Path() + "b");
    const auto store = MakeStore(MakeConfig(10, backends));
    ASSERT_TRUE(Soon([&] { return YoungestAreThere(blocks, 5); }));
}

TEST_F(UCPosixGcLeaderTest, ARemovedLockFileIsMadeAgain)
{
    const auto lock = Path() + ".gc-4096.lock";
    const auto store = MakeStore(MakeConfig(enough));
    for (size_t i = 0; i < 2; i++) {
        struct stat st;  // it is made with the umask first
        ASSERT_TRUE(
            Soon([&] { return stat(lock.c_str(), &st) == 0 && (st.st_mode & 0777) == 0660; }));
        ASSERT_EQ(unlink(lock.c_str()), 0);
    }
}

TEST_F(UCPosixGcLeaderTest, ARootThatCannotBeLockedIsNotCollected)
{
    constexpr uid_t nobody = 65534;
    const auto blocks = PutBlocks(Path(), 30);
    ASSERT_EQ(chmod((Path() + "data").c_str(), 0777), 0);
    ASSERT_EQ(chmod(Path().c_str(), 0555), 0);
    const auto root = geteuid() == 0;
    if (root && seteuid(nobody) != 0) { GTEST_SKIP() << "run it as another user than root"; }
    auto store = MakeStore(MakeConfig(10));
    AwaitCheck();
    store.reset();
    if (root) { ASSERT_EQ(seteuid(0), 0); }
    ASSERT_EQ(chmod(Path().c_str(), 0755), 0);
    ASSERT_EQ(CountThere(blocks), blocks.size());
}
