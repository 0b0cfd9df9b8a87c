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

/** Hands one ready unit after the other to a worker. */
class AioLane::Pump : public Job {
public:
    explicit Pump(AioLane* lane) : lane_{lane} {}
    bool Step() override
    {
        UnitPtr unit;
        auto more = false;
        {
            std::lock_guard<std::mutex> lock{lane_->mutex_};
            auto& ready = lane_->ready_;
            if (ready.empty()) { return false; }
            unit = std::move(ready.front());
            ready.pop_front();
            more = !ready.empty();
        }
        lane_->worker_(std::move(unit));
        return more;
    }

private:
    AioLane* lane_;
};

Status AioLane::Setup(const Config& config, size_t nWorker, Worker worker)
{
    depth_ = config.aioQueueDepth;
    worker_ = std::move(worker);
    return workers_.Setup(nWorker, config.cpuAffinityCores);
}

void AioLane::Wake(size_t n)
{
    if (n > 0) { workers_.Push(std::make_shared<Pump>(this), n); }
}

void AioLane::Resume(UnitPtr unit)
{
    std::lock_guard<std::mutex> lock{mutex_};
    ready_.push_back(std::move(unit));
    Wake(1);
}

void AioLane::Push(Units units)
{
    std::lock_guard<std::mutex> lock{mutex_};
    waiting_.splice(waiting_.end(), units);
    Admit();
}

bool AioLane::Park(UnitPtr& unit, size_t left)
{
    std::lock_guard<std::mutex> lock{mutex_};
    if (left != left_) {  // what the unit lacked came back meanwhile
        ready_.push_back(std::move(unit));
        Wake(1);
        return true;
    }
    if (busy_ == parked_.size() + 1) { return false; }
    parked_.push_back(std::move(unit));
    return true;
}

void AioLane::Leave()
{
    std::lock_guard<std::mutex> lock{mutex_};
    busy_--;
    left_++;
    if (parked_.empty()) {
        Admit();
    } else {
        ready_.splice(ready_.end(), parked_, parked_.begin());
        Wake(1);
    }
    if (busy_ == 0) { idle_.notify_all(); }
}

AioLane::Units AioLane::Extract(const std::function<bool(const AioUnit&)>& match)
{
    Units matched;
    const auto take = [&](Units& from) {
        for (auto it = from.begin(); it != from.end();) {
            auto unit = it++;
            if ((*unit)->fd < 0 && match(**unit)) { matched.splice(matched.end(), from, unit); }
        }
    };
    std::lock_guard<std::mutex> lock{mutex_};
    const auto freed = parked_.size();
    ready_.splice(ready_.end(), parked_);  // what they wait for may go now
    take(ready_);
    Wake(freed);
    busy_ -= matched.size();
    take(waiting_);
    Admit();
    if (busy_ == 0) { idle_.notify_all(); }
    return matched;
}

void AioLane::Drain()
{
    std::unique_lock<std::mutex> lock{mutex_};
    const auto second = std::chrono::seconds(1);
    while (!idle_.wait_for(lock, second, [this] { return busy_ == 0; })) { Kick(); }
}

void AioLane::Admit()
{
    // Nothing new while units wait for what those on their way hold.
    size_t n = 0;
    for (; busy_ < depth_ && parked_.empty() && !waiting_.empty(); busy_++, n++) {
        ready_.splice(ready_.end(), waiting_, waiting_.begin());
    }
    Wake(n);
}

}  // namespace UC::PosixStore
