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
#include <algorithm>
#include <climits>
#include <cstdarg>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fstream>
#include <linux/aio_abi.h>
#include <list>
#include <mutex>
#include <sstream>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <thread>
#include <unistd.h>
#include "posix_io_fault.h"
#include "posix_store_base.h"
#include "time/now_time.h"

using UC::NowTime;
using UC::Test::Detail::HostPages;
using UC::Test::Detail::IoFault;

namespace {

/** Shows each request to `hook` before the kernel gets it: this executable's own syscall(). */
struct AioFault {
    struct Request {
        iocb& cb;
        size_t limit;             // bytes to move at most; the hook may lower it
        std::atomic<bool>* gate;  // the kernel gets the request when this is true
    };
    /** Returns the errno that io_submit fails with, or 0 to go on. */
    using Hook = std::function<int(Request&)>;
    explicit AioFault(Hook hook, int setupError = 0) : hook{std::move(hook)}, setupError{setupError}
    {
        current = this;
    }
    ~AioFault()
    {
        current = nullptr;
        std::lock_guard<std::mutex> lock{mutex};
        for (auto& thread : held) { thread.join(); }
    }
    int Submit(aio_context_t ctx, iocb* cb)
    {
        Request request{*cb, SIZE_MAX, nullptr};
        const auto eno = hook ? hook(request) : 0;
        if (eno != 0) { return -eno; }
        if (request.limit != SIZE_MAX) { Cut(*cb, request.limit); }
        if (request.gate) {
            std::lock_guard<std::mutex> lock{mutex};
            held.emplace_back([ctx, copy = *cb, gate = request.gate]() mutable {
                while (!*gate) { IoFault::SleepMs(1); }
                Go(ctx, &copy);
            });
            return 1;
        }
        return Go(ctx, cb);
    }
    static int Go(aio_context_t ctx, iocb* cb)
    {
        handoff.fetch_add(1, std::memory_order_release);
        const auto ret = Real()(SYS_io_submit, ctx, 1L, &cb, 0L, 0L, 0L);
        return ret < 0 ? -errno : 1;
    }
    static void Cut(iocb& cb, size_t limit)
    {
        const auto piece = reinterpret_cast<const iovec*>(static_cast<uintptr_t>(cb.aio_buf));
        const auto write = cb.aio_lio_opcode == IOCB_CMD_PWRITEV;
        cb.aio_lio_opcode = write ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
        cb.aio_buf = reinterpret_cast<uintptr_t>(piece->iov_base);
        cb.aio_nbytes = std::min(piece->iov_len, limit);
    }
    using Syscall = long(long, ...);
    static Syscall* Real()
    {
        static auto real = reinterpret_cast<Syscall*>(dlsym(RTLD_NEXT, "syscall"));
        return real;
    }

    static std::atomic<AioFault*> current;
    static std::atomic<size_t> handoff;  // tells a sanitizer what the kernel passes on
    const Hook hook;
    const int setupError;
    std::list<std::thread> held;
    std::mutex mutex;
};
std::atomic<AioFault*> AioFault::current{nullptr};
std::atomic<size_t> AioFault::handoff{0};

}  // namespace

extern "C" long syscall(long number, ...) noexcept
{
    long a[6];
    va_list args;
    va_start(args, number);
    for (auto& arg : a) { arg = va_arg(args, long); }
    va_end(args);
    auto fault = AioFault::current.load();
    if (fault && (number == SYS_io_submit || (number == SYS_io_setup && fault->setupError != 0))) {
        const auto ret = number == SYS_io_setup
                             ? -fault->setupError
                             : fault->Submit(a[0], *reinterpret_cast<iocb**>(a[2]));
        if (ret >= 0) { return ret; }
        errno = -ret;
        return -1;
    }
    const auto ret = AioFault::Real()(number, a[0], a[1], a[2], a[3], a[4], a[5]);
    if (number == SYS_io_getevents) { AioFault::handoff.load(std::memory_order_acquire); }
    return ret;
}

class UCPosixAioTest : public UC::Test::Detail::PosixStoreBase {
protected:
    static constexpr size_t kTimeoutMs = 200;
    bool direct_{false};
    size_t depth_{64};
    size_t timeoutMs_{30000};

    UC::Detail::Dictionary AioConfig() const
    {
        auto config = MakeConfig();
        config.Set("posix_io_engine", std::string("aio"));
        config.Set("io_direct", direct_);
        config.SetNumber("posix_open_concurrency", size_t{4});
        config.SetNumber("posix_aio_queue_depth", depth_);
        config.SetNumber("timeout_ms", timeoutMs_);
        return config;
    }
    std::unique_ptr<UC::StoreV1> MakeAio() const { return MakeStore(AioConfig()); }
    static UC::Status SetupOf(const UC::Detail::Dictionary& config)
    {
        std::unique_ptr<UC::StoreV1> store{MakePosixStore()};
        return store->Setup(config);
    }
    std::string Content(const UC::Detail::BlockId& block) const
    {
        std::ifstream file{File(block)};
        std::stringstream text;
        text << file.rdbuf();
        return text.str();
    }
    size_t Temporaries() const
    {
        size_t n = 0;
        auto dir = opendir((Path() + ".tmp").c_str());
        if (!dir) { return 0; }
        while (auto entry = readdir(dir)) { n += entry->d_name[0] != '.'; }
        closedir(dir);
        return n;
    }
    /** What is dumped is in the files, in order, and comes back. */
    void RoundTrip(size_t nBlock)
    {
        auto store = MakeAio();
        const auto blocks = MakeBlocks(nBlock);
        HostPages from{nBlock, BlockSize()}, to{nBlock, BlockSize()};
        from.Number();
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
        for (size_t i = 0; i < nBlock; i++) {
            ASSERT_EQ(Content(blocks[i]), from.Bytes().substr(i * BlockSize(), BlockSize()));
        }
        ASSERT_EQ(Temporaries(), 0);
        ASSERT_EQ(Load(*store, blocks, to), UC::Status::OK());
        ASSERT_EQ(to.Bytes(), from.Bytes());
    }
};

TEST_F(UCPosixAioTest, EveryComponentArrives)
{
    for (const bool direct : {false, true}) {
        direct_ = direct;
        tensorSize_ = direct ? 4096 : 24;
        for (const size_t nShard : {1, 3}) {
            nShard_ = nShard;
            for (const size_t n : {1, 2, 61, IOV_MAX + 7}) {
                nTensor_ = n;
                RoundTrip(3);
            }
        }
    }
}

TEST_F(UCPosixAioTest, ShortTransfersAreResumed)
{
    nTensor_ = 3;
    for (const bool direct : {false, true}) {
        direct_ = direct;
        tensorSize_ = direct ? 8192 : 5000;
        std::atomic<size_t> requests{0};
        AioFault fault{[&](AioFault::Request& request) {
            request.limit = direct ? 4096 : 1000;
            requests++;
            return 0;
        }};
        RoundTrip(4);
        ASSERT_GE(requests, 2 * 4 * BlockSize() / (direct ? 4096 : 1000));
    }
}

TEST_F(UCPosixAioTest, AFullKernelQueueIsTriedAgain)
{
    std::atomic<size_t> requests{0};
    AioFault fault{[&](AioFault::Request&) { return requests++ % 3 == 0 ? EAGAIN : 0; }};
    RoundTrip(20);
}

TEST_F(UCPosixAioTest, ManyMoreBlocksThanRequests)
{
    for (const size_t depth : {1, 3, 64}) {
        depth_ = depth;
        RoundTrip(300);
    }
}

TEST_F(UCPosixAioTest, WrongSizeIsAFailedBlock)
{
    nTensor_ = 2;
    auto store = MakeAio();
    const auto blocks = MakeBlocks(3);
    HostPages from{3, BlockSize()};
    from.Number();
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    for (const size_t size : {size_t{0}, tensorSize_, BlockSize() - 1, BlockSize() + 1}) {
        ASSERT_EQ(truncate(File(blocks[1]).c_str(), size), 0);
        HostPages to{3, BlockSize()};
        ASSERT_TRUE(Load(*store, blocks, to).Failure()) << size;
        auto expected = from.Bytes();
        std::fill_n(expected.begin() + BlockSize(), BlockSize(), 0);
        ASSERT_EQ(to.Bytes(), expected);  // the others are loaded
    }
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    ASSERT_EQ(Content(blocks[1]), from.Bytes().substr(BlockSize(), BlockSize()));
    ASSERT_EQ(unlink(File(blocks[1]).c_str()), 0);
    ASSERT_EQ(mkfifo(File(blocks[1]).c_str(), 0600), 0);
    HostPages to{3, BlockSize()};
    const auto task = store->Load(MakeDesc(blocks, to)).Value();
    ASSERT_EQ(store->WaitBlocks(task).Value().moved, (std::vector<uint8_t>{true, false, true}));
}

TEST_F(UCPosixAioTest, AFileThatShrinksWhileItIsReadFails)
{
    nTensor_ = 2;
    auto store = MakeAio();
    const auto blocks = MakeBlocks(1);
    HostPages from{1, BlockSize()}, to{1, BlockSize()};
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    AioFault fault{[&](AioFault::Request&) {
        EXPECT_EQ(truncate(File(blocks[0]).c_str(), tensorSize_), 0);
        return 0;
    }};
    ASSERT_TRUE(Load(*store, blocks, to).Failure());
}

TEST_F(UCPosixAioTest, WaitMeansPublished)
{
    auto store = MakeAio();
    HostPages from{4, BlockSize()};
    IoFault fault{[](IoFault::Call& call) {
        if (call.op == IoFault::Op::RENAME) { IoFault::SleepMs(5); }
        return 0;
    }};
    for (size_t round = 0; round < 20; round++) {
        const auto blocks = MakeBlocks(4);
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
        for (const auto& block : blocks) { ASSERT_EQ(FileSize(block), BlockSize()); }
    }
}

TEST_F(UCPosixAioTest, AnyFailureLeavesNothing)
{
    using Op = IoFault::Op;
    auto config = AioConfig();
    config.Set("posix_sync", std::string("data"));
    auto store = MakeStore(config);
    HostPages from{2, BlockSize(), 7};
    for (const auto op : {Op::OPEN, Op::SYNC, Op::CLOSE, Op::RENAME}) {
        const auto blocks = MakeBlocks(1);
        IoFault fault{[&](IoFault::Call& call) { return call.op == op ? EIO : 0; }};
        ASSERT_TRUE(Dump(*store, blocks, from).Failure());
        ASSERT_EQ(FileSize(blocks[0]), -1);
    }
    const auto blocks = MakeBlocks(2);
    {
        AioFault fault{[](AioFault::Request&) { return ENOSPC; }};
        ASSERT_TRUE(Dump(*store, blocks, from).Failure());
        ASSERT_EQ(FileSize(blocks[0]), -1);
    }
    auto desc = MakeDesc(blocks, from);
    desc[0].addrs[0] = reinterpret_cast<void*>(8);
    ASSERT_TRUE(store->Wait(store->Dump(desc).Value()).Failure());
    ASSERT_EQ(FileSize(blocks[0]), -1);
    ASSERT_EQ(Content(blocks[1]), std::string(BlockSize(), 7));
    ASSERT_EQ(Temporaries(), 0);
}

TEST_F(UCPosixAioTest, ShardsInAnyOrder)
{
    nShard_ = 4;
    nTensor_ = 2;
    auto store = MakeAio();
    std::vector<size_t> order{0, 1, 2, 3};
    do {
        const auto blocks = MakeBlocks(3);
        HostPages from{3, BlockSize()};
        const auto desc = MakeDesc(blocks, from.Number());
        UC::Detail::TaskDesc whole, broken, parts[2];
        for (auto i : order) {
            whole.push_back(desc[i]);
            broken.push_back(desc[4 + i]);
            parts[i % 2].push_back(desc[8 + i]);
        }
        broken[order[0]].addrs[1] = reinterpret_cast<void*>(8);
        ASSERT_EQ(store->Wait(store->Dump(whole).Value()), UC::Status::OK());
        ASSERT_TRUE(store->Wait(store->Dump(broken).Value()).Failure());
        ASSERT_EQ(store->Wait(store->Dump(parts[0]).Value()), UC::Status::OK());
        ASSERT_EQ(store->Lookup(blocks.data(), 3).Value(), (std::vector<uint8_t>{1, 0, 0}));
        ASSERT_EQ(store->Wait(store->Dump(parts[1]).Value()), UC::Status::OK());
        ASSERT_EQ(Content(blocks[0]), from.Bytes().substr(0, BlockSize()));
        ASSERT_EQ(Content(blocks[2]), from.Bytes().substr(2 * BlockSize()));
        ASSERT_EQ(Temporaries(), 0);
    } while (std::next_permutation(order.begin(), order.end()));
}

TEST_F(UCPosixAioTest, SameKeyTwiceInABatch)
{
    tensorSize_ = 65536;
    auto store = MakeAio();
    for (size_t round = 0; round < 10; round++) {
        const auto blocks = MakeBlocks(1);
        HostPages a{1, BlockSize(), 1}, b{1, BlockSize(), 2};
        auto desc = MakeDesc(blocks, a);
        desc.push_back(MakeDesc(blocks, b)[0]);
        ASSERT_EQ(store->Wait(store->Dump(desc).Value()), UC::Status::OK());
        const auto content = Content(blocks[0]);
        ASSERT_EQ(content, std::string(BlockSize(), content[0]));
    }
    ASSERT_EQ(Temporaries(), 0);
}

TEST_F(UCPosixAioTest, DirectRefusesWhatIsNotAligned)
{
    direct_ = true;
    for (const size_t size : {786240, 177408, 34560, 512}) {
        tensorSize_ = size;
        const auto s = SetupOf(AioConfig());
        ASSERT_EQ(s, UC::Status::InvalidParam());
        ASSERT_NE(s.ToString().find(std::to_string(size)), std::string::npos);
    }
    tensorSize_ = 4096;
    auto store = MakeAio();
    const auto blocks = MakeBlocks(1);
    HostPages from{2, BlockSize()};
    auto desc = MakeDesc(blocks, from);
    desc[0].addrs[0] = from.Data() + 64;
    ASSERT_EQ(store->Dump(desc).Error(), UC::Status::InvalidParam());
    ASSERT_EQ(store->Load(desc).Error(), UC::Status::InvalidParam());
    direct_ = false;
    store = MakeAio();
    ASSERT_EQ(store->Wait(store->Dump(desc).Value()), UC::Status::OK());
    ASSERT_EQ(FileSize(blocks[0]), BlockSize());
}

TEST_F(UCPosixAioTest, DirectOnlyWhereAskedFor)
{
    for (const bool direct : {false, true}) {
        direct_ = direct;
        std::atomic<size_t> requests{0}, odd{0};
        AioFault fault{[&](AioFault::Request& request) {
            const auto flags = fcntl(request.cb.aio_fildes, F_GETFL);
            odd += direct != ((flags & O_DIRECT) != 0);
            requests++;
            return 0;
        }};
        RoundTrip(3);
        ASSERT_EQ(requests, 6);
        ASSERT_EQ(odd, 0);
    }
}

TEST_F(UCPosixAioTest, QueueDepthIsASetting)
{
    for (const size_t depth : {size_t{0}, size_t{100000}}) {
        depth_ = depth;
        ASSERT_EQ(SetupOf(AioConfig()), UC::Status::InvalidParam());
    }
    depth_ = 64;
    {
        AioFault fault{nullptr, EAGAIN};
        const auto text = SetupOf(AioConfig()).ToString();
        for (const auto word : {"EAGAIN", "fs.aio-max-nr", "posix_aio_queue_depth"}) {
            ASSERT_NE(text.find(word), std::string::npos) << text;
        }
    }
    AioFault fault{nullptr, ENOSYS};
    ASSERT_NE(SetupOf(AioConfig()).ToString().find("ENOSYS"), std::string::npos);
}

TEST_F(UCPosixAioTest, IdleMomentsDoNotHang)
{
    auto store = MakeAio();
    const auto blocks = MakeBlocks(512);
    HostPages from{512, BlockSize()}, to{512, BlockSize()};
    from.Number();
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    for (size_t round = 0; round < 60; round++) {
        ASSERT_EQ(
            Load(*store, round % 2 ? blocks : Blocks(blocks.begin(), blocks.begin() + 256), to),
            UC::Status::OK());
        IoFault::SleepMs(round % 7);
    }
    ASSERT_EQ(to.Bytes(), from.Bytes());
    const auto start = NowTime::Now();
    store.reset();
    ASSERT_LT(NowTime::Now() - start, 1.0);
}

TEST_F(UCPosixAioTest, DestroyingAStoreFinishesItsDumps)
{
    auto store = MakeAio();
    const auto blocks = MakeBlocks(200);
    HostPages from{200, BlockSize(), 7};
    store->Dump(MakeDesc(blocks, from)).Value();
    store.reset();
    for (const auto& block : blocks) { ASSERT_EQ(FileSize(block), BlockSize()); }
    ASSERT_EQ(Temporaries(), 0);
}

TEST_F(UCPosixAioTest, FewFileDescriptors)
{
    auto store = MakeAio();
    const auto blocks = MakeBlocks(300);
    HostPages from{300, BlockSize()}, to{300, BlockSize()};
    from.Number();
    rlimit before;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    const auto next = dup(0);
    close(next);
    auto few = before;
    few.rlim_cur = next + 8;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto dumped = Dump(*store, blocks, from);
    const auto loaded = Load(*store, blocks, to);
    few.rlim_cur = next;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto none = Dump(*store, MakeBlocks(100), from);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    ASSERT_NE(none.ToString().find("EMFILE"), std::string::npos);
    ASSERT_EQ(dumped, UC::Status::OK());
    ASSERT_EQ(loaded, UC::Status::OK());
    ASSERT_EQ(to.Bytes(), from.Bytes());
}

TEST_F(UCPosixAioTest, DescriptorsThatCameBackMeanwhileAreTriedAgain)
{
    auto store = MakeAio();
    const auto blocks = MakeBlocks(3);
    HostPages from{3, BlockSize()}, to{3, BlockSize()};
    ASSERT_EQ(Dump(*store, blocks, from.Number()), UC::Status::OK());
    std::atomic<size_t> opens{0}, closes{0};
    IoFault fault{[&](IoFault::Call& call) {
        closes += call.op == IoFault::Op::CLOSE;
        if (call.op != IoFault::Op::OPEN) { return 0; }
        const auto nth = ++opens;
        while (opens < 3) { IoFault::SleepMs(1); }
        if (nth != 2 && nth != 3) { return 0; }
        while (closes == 0) { IoFault::SleepMs(1); }
        IoFault::SleepMs(50);  // the first block is done, nobody else holds a descriptor
        return EMFILE;
    }};
    ASSERT_EQ(Load(*store, blocks, to), UC::Status::OK());
    ASSERT_EQ(opens, 5);
    ASSERT_EQ(to.Bytes(), from.Bytes());
}

TEST_F(UCPosixAioTest, ALoadReturnsWhenItsPagesAreFree)
{
    for (const bool held : {false, true}) {
        timeoutMs_ = kTimeoutMs;
        depth_ = 1;
        auto store = MakeAio();
        const auto blocks = MakeBlocks(6);
        HostPages from{6, BlockSize(), 7}, to{6, BlockSize()};
        ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
        std::atomic<bool> open{false};
        std::atomic<size_t> requests{0};
        AioFault fault{[&](AioFault::Request& request) {
            requests++;
            if (held) { request.gate = &open; }  // else io_submit itself takes its time
            while (!held && !open) { IoFault::SleepMs(1); }
            return 0;
        }};
        auto task = store->Load(MakeDesc(blocks, to)).Value();
        std::thread later{[&] {
            IoFault::SleepMs(3 * kTimeoutMs);
            ASSERT_EQ(store->Check(task).Value(), false);
            ASSERT_EQ(store->Load(MakeDesc(blocks, to)).Error(), UC::Status::Timeout());
            ASSERT_EQ(store->Lookup(blocks.data(), 1).Value()[0], false);
            open = true;
        }};
        const auto start = NowTime::Now();
        ASSERT_EQ(store->Wait(task), UC::Status::Timeout());
        ASSERT_GE(NowTime::Now() - start, 3 * kTimeoutMs * 1e-3);
        later.join();
        ASSERT_EQ(requests, 1);  // what was queued did not begin
        ASSERT_EQ(store->Lookup(blocks.data(), 1).Value()[0], true);
        timeoutMs_ = 30000;
        ASSERT_EQ(Load(*MakeAio(), blocks, to), UC::Status::OK());
        ASSERT_EQ(to.Bytes(), from.Bytes());
    }
}

TEST_F(UCPosixAioTest, ATimedOutDumpIsNeverPublished)
{
    timeoutMs_ = kTimeoutMs;
    auto store = MakeAio();
    const auto blocks = MakeBlocks(1);
    HostPages from{1, BlockSize(), 7};
    {
        std::atomic<bool> open{false};
        AioFault fault{[&](AioFault::Request& request) {
            request.gate = &open;
            return 0;
        }};
        auto task = store->Dump(MakeDesc(blocks, from)).Value();
        const auto start = NowTime::Now();
        ASSERT_EQ(store->Wait(task), UC::Status::Timeout());
        ASSERT_LT(NowTime::Now() - start, 3 * kTimeoutMs * 1e-3);
        ASSERT_EQ(store->Check(task).Value(), false);
        open = true;
        while (!store->Check(task).Value()) { IoFault::SleepMs(1); }
    }
    ASSERT_EQ(FileSize(blocks[0]), -1);
    ASSERT_EQ(Temporaries(), 0);
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
}

TEST_F(UCPosixAioTest, DestroyingAStoreWaitsForTheKernel)
{
    timeoutMs_ = kTimeoutMs;
    for (const bool dump : {false, true}) {
        auto store = MakeAio();
        const auto blocks = MakeBlocks(1);
        auto pages = std::make_unique<HostPages>(1, BlockSize(), 7);
        ASSERT_EQ(Dump(*store, blocks, *pages), UC::Status::OK());
        std::atomic<bool> open{false};
        AioFault fault{[&](AioFault::Request& request) {
            request.gate = &open;
            return 0;
        }};
        const auto desc = MakeDesc(dump ? MakeBlocks(1) : blocks, *pages);
        auto task = dump ? store->Dump(desc) : store->Load(desc);
        std::thread later{[&] {
            IoFault::SleepMs(2 * kTimeoutMs);
            open = true;
        }};
        IoFault::SleepMs(50);
        store.reset();
        ASSERT_TRUE(open);
        pages.reset();  // what a sanitizer watches
        later.join();
    }
}

TEST_F(UCPosixAioTest, AHungStoreTakesNoThreadThatItNeeds)
{
    auto config = AioConfig();
    config.SetNumber("posix_open_concurrency", 2);
    config.SetNumber("posix_commit_concurrency", 2);
    auto store = MakeStore(config);
    const auto folder = Path() + "hung";
    ASSERT_EQ(mkdir(folder.c_str(), 0755), 0);
    auto other = MakeConfig();
    other.Set("storage_backends", std::vector<std::string>{folder});
    other.SetNumber("posix_data_trans_concurrency", 2);
    auto hung = MakeStore(other);
    const auto blocks = MakeBlocks(2);
    HostPages from{2, BlockSize(), 7}, to{2, BlockSize()};
    ASSERT_EQ(Dump(*store, blocks, from), UC::Status::OK());
    std::atomic<bool> closed{true};
    std::atomic<size_t> held{0};
    auto dumped = UC::Status::Error(), loaded = UC::Status::Error();
    {
        IoFault fault{[&](IoFault::Call& call) {
            if (call.op != IoFault::Op::WRITE || call.path.find("/hung/") == std::string::npos) {
                return 0;
            }
            held++;
            while (closed) { IoFault::SleepMs(5); }
            return 0;
        }};
        const auto task = hung->Dump(MakeDesc(blocks, from)).Value();
        while (held < 2) { IoFault::SleepMs(1); }
        loaded = Load(*store, blocks, to);
        dumped = Dump(*store, MakeBlocks(2), from);
        closed = false;
        ASSERT_EQ(hung->Wait(task), UC::Status::OK());
    }
    ASSERT_EQ(loaded, UC::Status::OK());
    ASSERT_EQ(dumped, UC::Status::OK());
    ASSERT_EQ(to.Bytes(), from.Bytes());
}
