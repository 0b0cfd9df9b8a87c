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
#ifndef UNIFIEDCACHE_POSIX_STORE_CC_STALL_GUARD_H
#define UNIFIEDCACHE_POSIX_STORE_CC_STALL_GUARD_H

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include "logger/logger.h"
#include "thread/latch.h"

namespace UC::PosixStore {

/**
 * @brief Knows whether an I/O of this store has been running for longer than the timeout.
 *
 * Each thread notes when its I/O began; nobody watches, whoever wants to know looks. So the store
 * is stalled from the timeout on until that I/O returns, and no longer. A task that was given up
 * while it had I/O running stalls the store as well.
 */
class StallGuard {
    using Clock = std::chrono::steady_clock;
    using Slot = std::atomic<int64_t>;  // when the I/O began, in ms; 0: no I/O

public:
    /** An I/O by the thread that holds the scope. */
    class Scope {
    public:
        explicit Scope(StallGuard& guard) : slot_{guard.Claim()} {}
        ~Scope()
        {
            if (slot_) { slot_->store(0); }
        }
        Scope(const Scope&) = delete;
        Scope& operator=(const Scope&) = delete;
        /** One I/O is over, the next one begins. */
        void Next()
        {
            if (slot_) { slot_->store(Now()); }
        }

    private:
        Slot* slot_;
    };

    /** `nThread` that do I/O at once; more are not watched. A timeout of 0: never stalled. */
    void Setup(size_t timeoutMs, size_t nThread)
    {
        timeoutMs_ = static_cast<int64_t>(timeoutMs);
        nSlot_ = timeoutMs > 0 ? nThread : 0;
        slots_ = std::make_unique<Slot[]>(nSlot_);
    }
    /** Of a task's units some still run. */
    void GivenUp(std::shared_ptr<Latch> rest)
    {
        std::lock_guard<std::mutex> lock{mutex_};
        rests_.push_back(std::move(rest));
        nRest_ = rests_.size();
    }
    bool Stalled()
    {
        int64_t longest = 0;
        const auto now = nSlot_ > 0 ? Now() : 0;
        for (size_t i = 0; i < nSlot_; i++) {
            const auto begin = slots_[i].load(std::memory_order_relaxed);
            if (begin != 0) { longest = std::max(longest, now - begin); }
        }
        const auto stalled = (longest > timeoutMs_ && nSlot_ > 0) || AnyRest();
        if (stalled_.exchange(stalled) != stalled) {
            if (stalled) {
                UC_ERROR("Storage is stalled: an I/O has not returned for {} ms.", longest);
            } else {
                UC_INFO("Storage is back: no I/O is overdue any more.");
            }
        }
        return stalled;
    }

private:
    static int64_t Now()
    {
        const auto now = Clock::now().time_since_epoch();
        return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
    }
    bool AnyRest()
    {
        if (nRest_ == 0) { return false; }
        std::lock_guard<std::mutex> lock{mutex_};
        rests_.remove_if([](const auto& rest) { return rest->Check(); });
        nRest_ = rests_.size();
        return nRest_ > 0;
    }
    Slot* Claim()
    {
        if (nSlot_ == 0) { return nullptr; }
        static std::atomic<size_t> threads{0};
        static thread_local const size_t first = threads.fetch_add(1);
        const auto now = Now();
        for (size_t i = 0; i < nSlot_; i++) {
            auto& slot = slots_[(first + i) % nSlot_];
            int64_t free = 0;
            if (slot.compare_exchange_strong(free, now)) { return &slot; }
        }
        return nullptr;
    }

    int64_t timeoutMs_{0};
    size_t nSlot_{0};
    std::unique_ptr<Slot[]> slots_;
    std::atomic<bool> stalled_{false};
    std::atomic<size_t> nRest_{0};
    std::list<std::shared_ptr<Latch>> rests_;
    std::mutex mutex_;
};

}  // namespace UC::PosixStore

#endif
