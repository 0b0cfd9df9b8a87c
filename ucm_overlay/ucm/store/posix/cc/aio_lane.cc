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
#include "aio_lane.h"

namespace UC::PosixStore {

bool AioLane::Setup(const Config& config, size_t nWorker, Worker worker)
{
    depth_ = config.aioQueueDepth;
    return pool_.SetNWorker(nWorker)
        .SetWorkerFn([worker = std::move(worker)](auto& unit, auto&) { worker(std::move(unit)); })
        .SetCpuAffinity(config.cpuAffinityCores)
        .Run();
}

void AioLane::Push(Units units)
{
    std::lock_guard<std::mutex> lock{mutex_};
    waiting_.splice(waiting_.end(), units);
    Admit();
}

bool AioLane::Park(UnitPtr& unit)
{
    std::lock_guard<std::mutex> lock{mutex_};
    if (busy_ == parked_.size() + 1) { return false; }
    parked_.push_back(std::move(unit));
    return true;
}

void AioLane::Leave()
{
    std::lock_guard<std::mutex> lock{mutex_};
    busy_--;
    if (parked_.empty()) {
        Admit();
    } else {
        pool_.Push(std::move(parked_.front()));
        parked_.pop_front();
    }
    if (busy_ == 0) { idle_.notify_all(); }
}

AioLane::Units AioLane::Extract(const std::function<bool(const AioUnit&)>& match)
{
    Units matched;
    const auto take = [&](Units& from) {
        for (auto it = from.begin(); it != from.end();) {
            auto unit = it++;
            if (match(**unit)) { matched.splice(matched.end(), from, unit); }
        }
    };
    std::lock_guard<std::mutex> lock{mutex_};
    pool_.Push(parked_);  // what they wait for may go now
    matched.splice(matched.end(), pool_.Extract([&](const UnitPtr& unit) {
        return unit->fd < 0 && match(*unit);
    }));
    busy_ -= matched.size();
    take(waiting_);
    Admit();
    if (busy_ == 0) { idle_.notify_all(); }
    return matched;
}

void AioLane::Drain()
{
    std::unique_lock<std::mutex> lock{mutex_};
    idle_.wait(lock, [this] { return busy_ == 0; });
}

void AioLane::Admit()
{
    // Nothing new while units wait for what those on their way hold.
    for (; busy_ < depth_ && parked_.empty() && !waiting_.empty(); busy_++) {
        pool_.Push(std::move(waiting_.front()));
        waiting_.pop_front();
    }
}

}  // namespace UC::PosixStore
