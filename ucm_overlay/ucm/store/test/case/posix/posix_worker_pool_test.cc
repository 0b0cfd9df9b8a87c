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
#include <filesystem>
#include <thread>
#include "posix/cc/worker_pool.h"
#include "posix_io_fault.h"
#include "posix_store_base.h"
#include "time/now_time.h"

using UC::PosixStore::Job;
using UC::PosixStore::WorkerPool;
using UC::Test::Detail::HostPages;
using UC::Test::Detail::IoFault;

class UCPosixWorkerPoolTest : public UC::Test::Detail::PosixStoreBase {
protected:
    using Op = IoFault::Op;

    std::unique_ptr<UC::StoreV1> MakeStoreAt(const std::string& name, size_t concurrency) const
    {
        std::filesystem::create_directories(Path() + name);
        auto config = MakeConfig();
        config.Set("storage_backends", std::vector<std::string>{Path() + name});
        config.SetNumber("posix_data_trans_concurrency", concurrency);
        return MakeStore(config);
    }
    static size_t Threads()
    {
        namespace fs = std::filesystem;
        const fs::directory_iterator tasks{"/proc/self/task"};
        return std::distance(fs::begin(tasks), fs::end(tasks));
    }
};

/** Counts its steps, and how many of them run at once. */
class CountingJob : public Job {
public:
    explicit CountingJob(int steps) : left_{steps} {}
    bool Step() override
    {
        if (left_.fetch_sub(1) <= 0) { return false; }
        const auto now = ++atOnce;
        for (auto seen = most.load(); now > seen && !most.compare_exchange_weak(seen, now);) {}
        IoFault::SleepMs(1);
        atOnce--;
        done++;
        return true;
    }
    static inline std::atomic<int> atOnce{0}, most{0};
    std::atomic<int> done{0};

private:
    std::atomic<int> left_;
};

TEST_F(UCPosixWorkerPoolTest, EveryStepIsTakenOnceAndWithinTheLimit)
{
    std::vector<std::shared_ptr<CountingJob>> jobs;
    for (auto i = 0; i < 6; i++) { jobs.push_back(std::make_shared<CountingJob>(40)); }
    CountingJob::most = 0;
    {
        WorkerPool::Lane lane;
        ASSERT_EQ(lane.Setup(3, {}), UC::Status::OK());
        for (const auto& job : jobs) { lane.Push(job, 40); }
        const auto last = [&](const Job& job) { return &job == jobs.back().get(); };
        lane.Help(last, [&] { return jobs.back()->done < 20; });
    }  // waits for all of it
    for (const auto& job : jobs) { ASSERT_EQ(job->done, 40); }
    ASSERT_LE(CountingJob::most, 3);
}

TEST_F(UCPosixWorkerPoolTest, ARemovedJobTakesNoFurtherStep)
{
    auto job = std::make_shared<CountingJob>(1000);
    WorkerPool::Lane lane;
    ASSERT_EQ(lane.Setup(2, {}), UC::Status::OK());
    lane.Push(job, 1000);
    ASSERT_EQ(lane.Remove([&](const Job& other) { return &other == job.get(); }).size(), 1);
    IoFault::SleepMs(20);  // those that have begun a turn finish it
    const auto done = job->done.load();
    ASSERT_LT(done, 100);
    IoFault::SleepMs(20);
    ASSERT_EQ(job->done, done);
    lane.Help([&](const Job& other) { return &other == job.get(); }, [] { return true; });
    ASSERT_EQ(job->done, done);
}

TEST_F(UCPosixWorkerPoolTest, ALeftJobIsDoneByWhoComesFirst)
{
    WorkerPool::Lane lane, other;
    ASSERT_EQ(lane.Setup(2, {}), UC::Status::OK());
    ASSERT_EQ(other.Setup(2, {}), UC::Status::OK());
    IoFault::SleepMs(20);  // the pool's first thread has found nothing to do by then
    const auto leave = [&] {
        auto job = std::make_shared<CountingJob>(1);
        lane.Leave(job);
        return job;
    };
    const auto awaitDone = [](const CountingJob& job) {
        const auto start = UC::NowTime::Now();
        while (job.done == 0 && UC::NowTime::Now() - start < 10) { IoFault::SleepMs(1); }
        return job.done.load();
    };
    auto job = leave();
    IoFault::SleepMs(20);
    ASSERT_EQ(job->done, 0);  // no thread was woken
    lane.Help([&](const Job& one) { return &one == job.get(); }, [] { return true; });
    ASSERT_EQ(job->done, 1);
    job = leave();
    lane.Kick();
    ASSERT_EQ(awaitDone(*job), 1);
    job = leave();
    other.Push(std::make_shared<CountingJob>(1), 1);
    ASSERT_EQ(awaitDone(*job), 1);
    job = leave();
    other.Leave(std::make_shared<CountingJob>(1));
    ASSERT_EQ(awaitDone(*job), 1);
    job = leave();
    other.Help([](const Job&) { return false; }, [] { return true; });
    ASSERT_EQ(awaitDone(*job), 1);
}

TEST_F(UCPosixWorkerPoolTest, ALaneEndsWithTheJobsThatWereLeft)
{
    auto job = std::make_shared<CountingJob>(1);
    WorkerPool::Lane other;
    ASSERT_EQ(other.Setup(1, {}), UC::Status::OK());
    const auto start = UC::NowTime::Now();
    {
        WorkerPool::Lane lane;
        ASSERT_EQ(lane.Setup(1, {}), UC::Status::OK());
        lane.Leave(job);
    }
    ASSERT_EQ(job->done, 1);
    ASSERT_LT(UC::NowTime::Now() - start, 0.5);       // less than what a stuck lane waits
    other.Push(std::make_shared<CountingJob>(1), 1);  // and nothing points to the lane any more
}

TEST_F(UCPosixWorkerPoolTest, SmallLoadsOfSeveralStoresAllEnd)
{
    std::vector<std::unique_ptr<UC::StoreV1>> stores;
    for (auto i = 0; i < 4; i++) { stores.push_back(MakeStoreAt(std::to_string(i), 2)); }
    const auto blocks = MakeBlocks(1);
    HostPages from{1, BlockSize(), 7};
    for (const auto& store : stores) { ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK()); }
    for (auto round = 0; round < 200; round++) {
        std::vector<std::unique_ptr<HostPages>> to;
        std::vector<UC::Detail::TaskHandle> tasks;
        for (const auto& store : stores) {
            to.push_back(std::make_unique<HostPages>(1, BlockSize()));
            tasks.push_back(store->Load(MakeDesc(blocks, *to.back())).Value());
        }
        for (auto i = stores.size(); i-- > 0;) {
            if (round % 2 == 0) {
                while (!stores[i]->Check(tasks[i]).Value()) {}
            }
            ASSERT_EQ(stores[i]->Wait(tasks[i]), UC::Status::OK());
            ASSERT_EQ(to[i]->Bytes(), from.Bytes());
        }
    }
}

TEST_F(UCPosixWorkerPoolTest, StoresShareTheirThreads)
{
    const auto before = Threads();
    {
        std::vector<std::unique_ptr<UC::StoreV1>> stores;
        for (auto i = 0; i < 7; i++) { stores.push_back(MakeStoreAt(std::to_string(i), 8)); }
        for (const auto& store : stores) {
            const auto blocks = MakeBlocks(32);
            HostPages from{32, BlockSize(), 7}, to{32, BlockSize()};
            ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
            ASSERT_EQ(Load(*store, blocks, to), UC::Status::OK());
            ASSERT_EQ(to.Bytes(), from.Bytes());
        }
        // 8, and one for each that a busy machine held up for as long as a hung one.
        ASSERT_LE(Threads() - before, 2 * 8);
    }
    ASSERT_EQ(Threads(), before);
}

/** Holds what reads and writes below a folder. */
struct Hang {
    explicit Hang(std::string folder)
        : fault{[this, folder = std::move(folder)](IoFault::Call& call) {
              using Op = IoFault::Op;
              const auto here = call.path.find(folder) != std::string::npos;
              if (!here || (call.op != Op::READ && call.op != Op::WRITE)) { return 0; }
              held++;
              while (closed) { IoFault::SleepMs(5); }
              return 0;
          }}
    {
    }
    ~Hang() { closed = false; }
    void AwaitHeld(size_t n) const
    {
        while (held < n) { IoFault::SleepMs(1); }
    }
    std::atomic<bool> closed{true};
    std::atomic<size_t> held{0};
    IoFault fault;
};

TEST_F(UCPosixWorkerPoolTest, AHungStoreTakesNoThreadThatOthersNeed)
{
    auto hung = MakeStoreAt("hung", 2), other = MakeStoreAt("other", 2);
    const auto blocks = MakeBlocks(2);
    HostPages from{2, BlockSize(), 7}, to{2, BlockSize()};
    ASSERT_EQ(Dump(*other, blocks, from), UC::Status::OK());
    Hang hang{"/hung/"};
    const auto task = hung->Dump(MakeDesc(blocks, from)).Value();
    hang.AwaitHeld(2);
    const auto loaded = Load(*other, blocks, to);           // the waiting thread does it
    const auto dumped = Dump(*other, MakeBlocks(2), from);  // a new thread, once two are stuck
    hang.closed = false;
    ASSERT_EQ(loaded, UC::Status::OK());
    ASSERT_EQ(dumped, UC::Status::OK());
    ASSERT_EQ(to.Bytes(), from.Bytes());
    ASSERT_EQ(hung->Wait(task), UC::Status::OK());
}

TEST_F(UCPosixWorkerPoolTest, AThreadThatIsOneTooManyEnds)
{
    auto hung = MakeStoreAt("hung", 2), other = MakeStoreAt("other", 2);
    const auto blocks = MakeBlocks(16);
    HostPages from{16, BlockSize(), 7};
    ASSERT_EQ(Dump(*other, blocks, from), UC::Status::OK());
    const auto warm = Threads();
    for (auto round = 0; round < 2; round++) {
        Hang hang{"/hung/"};
        const auto task = hung->Dump(MakeDesc(MakeBlocks(2), from)).Value();
        hang.AwaitHeld(2);
        const auto dumped = Dump(*other, MakeBlocks(16), from);
        const auto most = Threads();
        hang.closed = false;
        ASSERT_EQ(dumped, UC::Status::OK());
        ASSERT_GT(most, warm);
        ASSERT_EQ(hung->Wait(task), UC::Status::OK());
        IoFault::SleepMs(300);
        ASSERT_GT(Threads(), warm);  // a slow mount will need it again
        for (auto i = 0; i < 200 && Threads() > warm; i++) { IoFault::SleepMs(50); }
        ASSERT_LE(Threads(), warm);
    }
}

TEST_F(UCPosixWorkerPoolTest, ANewThreadGoesWhereWorkMoves)
{
    auto hung = MakeStoreAt("hung", 8), other = MakeStoreAt("other", 2);
    std::vector<std::unique_ptr<UC::StoreV1>> more;
    for (auto i = 0; i < 3; i++) { more.push_back(MakeStoreAt(fmt::format("hung{}", i), 8)); }
    const auto blocks = MakeBlocks(16);
    HostPages from{16, BlockSize(), 7};
    Hang hang{"/hung"};
    std::vector<UC::Detail::TaskHandle> tasks{hung->Dump(MakeDesc(blocks, from)).Value()};
    for (auto& store : more) { tasks.push_back(store->Dump(MakeDesc(blocks, from)).Value()); }
    hang.AwaitHeld(8);
    const auto start = UC::NowTime::Now();
    const auto dumped = Dump(*other, blocks, from);
    const auto took = UC::NowTime::Now() - start;
    hang.closed = false;
    ASSERT_EQ(dumped, UC::Status::OK());
    ASSERT_LT(took, 3.5);  // not one more second for every eight threads that get stuck
    ASSERT_EQ(hung->Wait(tasks[0]), UC::Status::OK());
    for (auto i = 0; i < 3; i++) { ASSERT_EQ(more[i]->Wait(tasks[i + 1]), UC::Status::OK()); }
}

TEST_F(UCPosixWorkerPoolTest, WhoWaitsForAHungStoreFindsThreadsForOthers)
{
    auto hung = MakeStoreAt("hung", 2), other = MakeStoreAt("other", 2);
    const auto blocks = MakeBlocks(2);
    HostPages from{2, BlockSize(), 7};
    Hang hang{"/hung/"};
    const auto task = hung->Dump(MakeDesc(blocks, from)).Value();
    hang.AwaitHeld(2);
    ASSERT_TRUE(other->Dump(MakeDesc(blocks, from)).HasValue());
    std::thread waiting{[&] { ASSERT_EQ(hung->Wait(task), UC::Status::OK()); }};
    const std::vector<uint8_t> both{1, 1};
    const auto dumped = [&] { return other->Lookup(blocks.data(), 2).Value() == both; };
    for (auto i = 0; i < 100 && !dumped(); i++) { IoFault::SleepMs(50); }
    const auto inTime = dumped();
    hang.closed = false;
    waiting.join();
    ASSERT_TRUE(inTime);
}

TEST_F(UCPosixWorkerPoolTest, AHungStoreHoldsUpNoDestruction)
{
    auto hung = MakeStoreAt("hung", 2), other = MakeStoreAt("other", 2);
    const auto blocks = MakeBlocks(2);
    HostPages from{2, BlockSize(), 7};
    Hang hang{"/hung/"};
    const auto task = hung->Dump(MakeDesc(blocks, from)).Value();
    hang.AwaitHeld(2);
    ASSERT_TRUE(other->Dump(MakeDesc(blocks, from)).HasValue());
    const auto start = UC::NowTime::Now();
    other.reset();
    ASSERT_LT(UC::NowTime::Now() - start, 10);  // and not until the other one is let go
    hang.closed = false;
    ASSERT_EQ(hung->Wait(task), UC::Status::OK());
    ASSERT_EQ(MakeStoreAt("other", 2)->Lookup(blocks.data(), 2).Value(),
              (std::vector<uint8_t>{1, 1}));
}

TEST_F(UCPosixWorkerPoolTest, WorkThatCameWhileAThreadHelpedIsDone)
{
    auto store = MakeStoreAt("store", 1);
    const auto blocks = MakeBlocks(16);
    HostPages from{16, BlockSize(), 7}, to{16, BlockSize()}, one{1, BlockSize()};
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    IoFault fault{[](IoFault::Call& call) {
        if (call.op == IoFault::Op::READ) { IoFault::SleepMs(5); }
        return 0;
    }};
    std::thread waiting{[&] { ASSERT_EQ(Load(*store, blocks, to), UC::Status::OK()); }};
    IoFault::SleepMs(20);
    const auto late = store->Load(MakeDesc({blocks[0]}, one)).Value();
    const auto start = UC::NowTime::Now();
    while (!store->Check(late).Value()) {
        ASSERT_LT(UC::NowTime::Now() - start, 10);
        IoFault::SleepMs(1);
    }
    waiting.join();
    ASSERT_EQ(store->Wait(late), UC::Status::OK());
}
