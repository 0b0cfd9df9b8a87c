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
#ifndef UNIFIEDCACHE_POSIX_STORE_CC_AIO_LANE_H
#define UNIFIEDCACHE_POSIX_STORE_CC_AIO_LANE_H

#include <atomic>
#include <optional>
#include "aio_impl.h"
#include "posix_file.h"
#include "stall_guard.h"
#include "trans_unit.h"
#include "worker_pool.h"

namespace UC::PosixStore {

struct AioUnit : TransUnit, AioImpl::Io {
    explicit AioUnit(TransUnit unit) : TransUnit{std::move(unit)} {}

    std::optional<PosixFile> file;
    std::shared_ptr<BlockWriter> writer;       // of a dump
    std::vector<const Detail::Shard*> shards;  // to move, one after the other
    size_t gathered{0};                        // of them: begun
    std::optional<StallGuard::Scope> running;
};

/** The units of one direction: `depth` on their way at most, the others wait for their turn. */
class AioLane {
public:
    using UnitPtr = std::unique_ptr<AioUnit>;
    using Units = std::list<UnitPtr>;
    using Worker = std::function<void(UnitPtr)>;

    Status Setup(const Config& config, size_t nWorker, Worker worker);
    void Push(Units units);
    /** A unit that is on its way wants a worker again. */
    void Resume(UnitPtr unit);
    /** How many units are done; tells Park() since when the unit has lacked something. */
    size_t Left() const { return left_; }
    /** Keeps a unit until another one is done; false when there is none to wait for. */
    bool Park(UnitPtr& unit, size_t left);
    /** A unit is done. */
    void Leave();
    /** Takes units out that match and have not begun. */
    Units Extract(const std::function<bool(const AioUnit&)>& match);
    /** Until all units are done. */
    void Drain();
    void Kick() { workers_.Kick(); }

private:
    class Pump;

    void Admit();
    void Wake(size_t n);

    Worker worker_;
    size_t depth_{0};
    size_t busy_{0};
    std::atomic<size_t> left_{0};
    Units waiting_;
    Units parked_;
    Units ready_;  // for a worker
    std::mutex mutex_;
    std::condition_variable idle_;
    WorkerPool::Lane workers_;
};

}  // namespace UC::PosixStore

#endif
