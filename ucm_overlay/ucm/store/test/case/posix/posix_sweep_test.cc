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
#include <fstream>
#include <sys/wait.h>
#include <unistd.h>
#include <utime.h>
#include "posix/cc/temp_owner.h"
#include "posix_io_fault.h"
#include "posix_store_base.h"

using UC::PosixStore::TempOwner;
using UC::Test::Detail::HostPages;
using UC::Test::Detail::IoFault;
using UC::Test::Detail::NamedFiles;

class UCPosixSweepTest : public UC::Test::Detail::PosixStoreBase {
protected:
    std::string Leave(const std::string& name, bool old = false) const
    {
        const auto path = Path() + ".tmp/" + name;
        std::ofstream{path} << "x";
        const utimbuf long_ago{1, 1};
        if (old) { utime(path.c_str(), &long_ago); }
        return path;
    }
    std::string Leave(const TempOwner& owner, bool old = false) const
    {
        return Leave(std::string(32, 'a') + ".7." + owner.Suffix(), old);
    }
    static bool Gone(const std::string& path)
    {
        for (size_t i = 0; i < 100; i++) {
            if (access(path.c_str(), F_OK) != 0) { return true; }
            IoFault::SleepMs(10);
        }
        return false;
    }
    /** A process that dies in the middle of a dump. */
    void DieWhileWriting() const
    {
        const auto pid = fork();
        if (pid == 0) {
            auto store = MakeStore();
            HostPages from{1, BlockSize()};
            IoFault fault{[](IoFault::Call& call) {
                if (call.op == IoFault::Op::WRITE) { kill(getpid(), SIGKILL); }
                return 0;
            }};
            Dump(*store, MakeBlocks(1), from);
            _exit(0);
        }
        waitpid(pid, nullptr, 0);
    }
    static std::string DeadPid()
    {
        const auto pid = fork();
        if (pid == 0) { _exit(0); }
        waitpid(pid, nullptr, 0);
        return std::to_string(pid);
    }
};

TEST_F(UCPosixSweepTest, NamesTellTheWriter)
{
    auto self = TempOwner::Self();
    self.host = "node-1.rack.2";
    const auto parsed = TempOwner::Parse(std::string(32, '0') + ".12." + self.Suffix());
    ASSERT_EQ(parsed.Suffix(), self.Suffix());
    ASSERT_EQ(parsed.host, self.host);
    ASSERT_FALSE(parsed.Dead(self));
    for (const auto name : {"", "a", "a.tmp", "1.2.3.4.5.6", "......"}) {
        ASSERT_FALSE(TempOwner::Parse(name).Dead(self)) << name;
    }
}

TEST_F(UCPosixSweepTest, WhatIsUnknownOfAWriterIsNobodysDeath)
{
    for (auto field : {&TempOwner::bootId, &TempOwner::pidNamespace, &TempOwner::startTime}) {
        auto self = TempOwner::Self();
        self.*field = "0";
        auto other = self;
        other.pid = DeadPid();
        ASSERT_FALSE(other.Dead(self));
    }
}

TEST_F(UCPosixSweepTest, OnlyWhatNobodyWritesGoes)
{
    ASSERT_EQ(mkdir((Path() + ".tmp").c_str(), 0755), 0);
    ASSERT_EQ(mkdir((Path() + ".tmp/folder").c_str(), 0755), 0);
    const auto self = TempOwner::Self();
    auto dead = self, reused = self, otherBoot = self, otherContainer = self;
    dead.pid = DeadPid();
    reused.startTime = "1";
    otherBoot.pid = otherContainer.pid = DeadPid();
    otherBoot.bootId = "0123-4567";
    otherContainer.pidNamespace = "1";
    const auto alive = Leave(self);
    const auto unknownFresh = Leave(otherBoot), containerFresh = Leave(otherContainer);
    const auto strange = Leave("strange");
    const std::vector<std::string> gone{Leave(dead), Leave(reused), Leave("strange.old", true)};
    auto store = MakeStore();
    for (const auto& path : gone) { ASSERT_TRUE(Gone(path)) << path; }
    for (const auto& path : {alive, unknownFresh, containerFresh, strange}) {
        ASSERT_EQ(access(path.c_str(), F_OK), 0) << path;
    }
    Leave(otherBoot, true);
    store = MakeStore();
    ASSERT_TRUE(Gone(unknownFresh));
}

TEST_F(UCPosixSweepTest, WhatALinkNamesIsNotSwept)
{
    const auto elsewhere = Path() + "elsewhere";
    ASSERT_EQ(mkdir(elsewhere.c_str(), 0755), 0);
    ASSERT_EQ(symlink("elsewhere", (Path() + ".tmp").c_str()), 0);
    const auto old = Leave("precious", true);
    auto store = MakeStore();
    IoFault::SleepMs(100);
    ASSERT_EQ(access(old.c_str(), F_OK), 0);
}

TEST_F(UCPosixSweepTest, AKilledWriterLeavesNothingWithoutAName)
{
    if (!HasUnnamedFiles()) { GTEST_SKIP() << "runs on ext4, xfs, btrfs and tmpfs"; }
    DieWhileWriting();
    for (const auto& entry : std::filesystem::recursive_directory_iterator{Path()}) {
        ASSERT_TRUE(entry.is_directory()) << entry.path();
    }
}

TEST_F(UCPosixSweepTest, AKilledWritersTemporaryGoesAtTheNextStart)
{
    NamedFiles named;
    DieWhileWriting();
    ASSERT_NE(rmdir((Path() + ".tmp").c_str()), 0);
    ASSERT_EQ(errno, ENOTEMPTY);
    auto store = MakeStore();
    IoFault::SleepMs(100);
    ASSERT_EQ(rmdir((Path() + ".tmp").c_str()), 0);
    HostPages from{1, BlockSize()};
    ASSERT_EQ(Dump(*store, MakeBlocks(1), from), UC::Status::OK());
}
