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
#include "worker_pool.h"
#include <algorithm>
#include <map>
#include <unistd.h>
#include <utility>
#include "logger/logger.h"
#include "thread/cpu_affinity.h"

namespace UC::PosixStore {

using Clock = std::chrono::steady_clock;

static constexpr int64_t StuckMs = 1000;
// A thread too many ends when there was nothing to do for so long: on a slow mount the others may
// soon be stuck again.
static constexpr auto SurplusTime = std::chrono::seconds(3);
// A thread stays with a job for that long before it looks for others that wait.
static constexpr auto Turn = std::chrono::microseconds(100);

static int64_t NowMs()
{
    const auto now = Clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

Status WorkerPool::Lane::Setup(size_t limit, const std::vector<ssize_t>& cores)
{
    limit_ = limit;
    pool_ = Shared(cores);
    std::lock_guard<std::mutex> lock{pool_->mutex_};
    if (pool_->workers_.empty()) {
        auto s = pool_->StartOne();
        if (s.Failure()) { return s; }
    }
    pool_->lanes_.push_back(this);
    return Status::OK();
}

WorkerPool::Lane::~Lane()
{
    if (!pool_) { return; }
    Lock lock{pool_->mutex_};
    Staff();
    if (pool_->left_ == this) { pool_->left_ = nullptr; }
    const auto idle = [this] { return running_ == 0 && jobs_.empty(); };
    while (!idle_.wait_for(lock, std::chrono::milliseconds(StuckMs), idle)) { Staff(); }
    pool_->lanes_.remove(this);
}

void WorkerPool::Lane::Push(JobPtr job, size_t steps)
{
    std::lock_guard<std::mutex> lock{pool_->mutex_};
    pool_->StaffLeft();
    jobs_.push_back(std::move(job));
    Staff(steps);
}

void WorkerPool::Lane::Leave(JobPtr job)
{
    std::lock_guard<std::mutex> lock{pool_->mutex_};
    pool_->StaffLeft();
    jobs_.push_back(std::move(job));
    pool_->left_ = this;
}

void WorkerPool::Lane::Staff(size_t wanted)
{
    if (jobs_.empty()) { return; }
    pool_->Staff(std::min(wanted, limit_ - std::min(limit_, running_)));
}

bool WorkerPool::Lane::Stuck() const { return running_ > 0 && NowMs() - moved_ > StuckMs; }

void WorkerPool::Lane::Help(const Match& match, const std::function<bool()>& goOn)
{
    Lock lock{pool_->mutex_};
    const auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](auto& j) { return match(*j); });
    // A job that was left is the last of its lane: this thread does it, or wakes one for it.
    if (pool_->left_ == this && found != jobs_.end() && *found == jobs_.back()) {
        pool_->left_ = nullptr;
    }
    pool_->StaffLeft();
    if (found == jobs_.end()) { return; }
    const auto job = *found;
    while (running_ < limit_ && goOn() &&
           std::find(jobs_.begin(), jobs_.end(), job) != jobs_.end()) {
        Serve(*this, job, lock);
    }
    // The place of this thread is free, and other jobs may want it. Out of time, its caller removes
    // this one first, and kicks then.
    if (goOn()) { Staff(); }
}

void WorkerPool::Lane::Kick()
{
    std::lock_guard<std::mutex> lock{pool_->mutex_};
    pool_->StaffLeft();
    for (auto* lane : pool_->lanes_) { lane->Staff(); }
}

std::list<WorkerPool::Lane::JobPtr> WorkerPool::Lane::Remove(const Match& match)
{
    std::list<JobPtr> removed;
    if (!pool_) { return removed; }  // its Setup() did not get that far
    std::lock_guard<std::mutex> lock{pool_->mutex_};
    for (auto it = jobs_.begin(); it != jobs_.end();) {
        auto current = it++;
        if (match(**current)) { removed.splice(removed.end(), jobs_, current); }
    }
    if (running_ == 0 && jobs_.empty()) { idle_.notify_all(); }
    return removed;
}

std::shared_ptr<WorkerPool> WorkerPool::Shared(const std::vector<ssize_t>& cores)
{
    using Key = std::pair<pid_t, std::vector<ssize_t>>;  // a fork has none of these threads
    static std::mutex mutex;
    static std::map<Key, std::weak_ptr<WorkerPool>> pools;
    std::lock_guard<std::mutex> lock{mutex};
    auto& known = pools[{getpid(), cores}];
    auto pool = known.lock();
    if (!pool) { known = pool = std::make_shared<WorkerPool>(cores); }
    return pool;
}

WorkerPool::~WorkerPool()
{
    {
        std::lock_guard<std::mutex> lock{mutex_};
        stop_ = true;
        work_.notify_all();
    }
    for (auto& worker : workers_) { worker.thread.join(); }
    JoinRetired();
}

Status WorkerPool::StartOne()
{
    JoinRetired();
    auto& worker = workers_.emplace_back();
    try {
        worker.thread = std::thread{[this, &worker] { Loop(worker); }};
    } catch (const std::exception& e) {
        workers_.pop_back();
        return Status::Error(fmt::format("cannot start a thread: {}", e.what()));
    }
    return Status::OK();
}

/** They have ended, or are about to: none of them takes the lock again. */
void WorkerPool::JoinRetired()
{
    for (auto& worker : retired_) { worker.thread.join(); }
    retired_.clear();
}

/** How many threads there may be now: those that are stuck count for nothing. */
size_t WorkerPool::Limit() const
{
    size_t largest = 0;
    for (const auto* lane : lanes_) { largest = std::max(largest, lane->limit_); }
    const auto now = NowMs();
    return largest + std::count_if(workers_.begin(), workers_.end(), [&](const auto& worker) {
               return worker.busySince != 0 && now - worker.busySince > StuckMs;
           });
}

/** Others came while some were stuck, which move again. */
bool WorkerPool::TooMany() const { return workers_.size() > Limit(); }

void WorkerPool::Retire(Worker& self)
{
    const auto here = std::find_if(workers_.begin(), workers_.end(),
                                   [&](const auto& worker) { return &worker == &self; });
    retired_.splice(retired_.end(), workers_, here);
}

/** Finds `wanted` threads for new work: idle ones first, then new ones. */
void WorkerPool::Staff(size_t wanted)
{
    const auto waking = std::min(wanted, nIdle_ - nWoken_);
    nWoken_ += waking;
    for (size_t i = 0; i < waking; i++) { work_.notify_one(); }
    if (waking == wanted) { return; }
    const auto limit = Limit();
    const auto may = limit - std::min(limit, workers_.size());
    for (size_t i = std::min(may, wanted - waking); i > 0; i--) {
        const auto s = StartOne();
        if (s.Success()) { continue; }
        UC_WARN("Failed({}) to add to {} I/O threads: go on with them.", s, workers_.size());
        return;
    }
}

void WorkerPool::StaffLeft()
{
    if (left_) { std::exchange(left_, nullptr)->Staff(1); }
}

/** The lane that has waited longest among those with work for one more thread; stuck ones last. */
WorkerPool::Lane* WorkerPool::NextLane()
{
    auto next = lanes_.end();
    for (auto it = lanes_.begin(); it != lanes_.end(); it++) {
        const auto lane = *it;
        if (lane->jobs_.empty() || lane->running_ >= lane->limit_) { continue; }
        const auto moves = !lane->Stuck();
        if (moves || next == lanes_.end()) { next = it; }
        if (moves) { break; }
    }
    if (next == lanes_.end()) { return nullptr; }
    lanes_.splice(lanes_.end(), lanes_, next);
    return *next;
}

void WorkerPool::Serve(Lane& lane, Lane::JobPtr job, Lock& lock)
{
    if (lane.running_++ == 0) { lane.moved_ = NowMs(); }
    lock.unlock();
    const auto end = Clock::now() + Turn;
    auto more = job->Step();
    while (more && Clock::now() < end) { more = job->Step(); }
    lock.lock();
    lane.running_--;
    lane.moved_ = NowMs();
    if (!more) { lane.jobs_.remove(job); }
    if (lane.running_ == 0 && lane.jobs_.empty()) { lane.idle_.notify_all(); }
}

void WorkerPool::Loop(Worker& self)
{
    if (!cores_.empty()) { CpuAffinity::SetCpuAffinity4CurrentThread(cores_); }
    Lock lock{mutex_};
    for (;;) {
        const auto lane = NextLane();
        if (lane) {
            self.busySince = NowMs();
            Serve(*lane, lane->jobs_.front(), lock);
            self.busySince = 0;
            continue;
        }
        if (stop_) { return; }
        nIdle_++;
        const auto woken = [this] { return stop_ || nWoken_ > 0; };
        auto ends = false;
        if (TooMany()) {
            ends = !work_.wait_for(lock, SurplusTime, woken) && TooMany();
        } else {
            work_.wait(lock, woken);
        }
        nIdle_--;
        if (ends) { return Retire(self); }
        nWoken_ -= nWoken_ > 0;
    }
}

}  // namespace UC::PosixStore
