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
#ifndef UNIFIEDCACHE_POSIX_STORE_CC_IO_ENGINE_H
#define UNIFIEDCACHE_POSIX_STORE_CC_IO_ENGINE_H

#include <functional>
#include <mutex>
#include <unordered_map>
#include "logger/logger.h"
#include "space_layout.h"
#include "thread/latch.h"
#include "trans_task.h"

namespace UC::PosixStore {

/**
 * @brief The tasks of a store, from Submit() to the end of their last I/O.
 *
 * A task past the timeout is given up: what is queued is dropped, what was not finished has
 * failed. But an I/O that holds the caller's pages cannot be called off. A load waits for it; a
 * dump returns, its block is not published any more, and Check() tells when its pages are free.
 */
class IoEngine {
public:
    using TaskPtr = std::shared_ptr<TransTask>;
    using WaiterPtr = std::shared_ptr<Latch>;

    virtual ~IoEngine() = default;
    Expected<Detail::TaskHandle> Submit(TransTask task)
    {
        const auto id = task.id;
        for (const auto& shard : task.desc) {
            if (shard.index >= nShard_ || shard.addrs.size() != nTensor_) [[unlikely]] {
                return Status::InvalidParam("shard {} of {} with {} addresses instead of {}",
                                            shard.index, nShard_, shard.addrs.size(), nTensor_);
            }
        }
        if (layout_->Guard().Stalled()) [[unlikely]] {
            return Status{Status::Timeout().Underlying(), "storage is stalled"};
        }
        Entry entry{std::make_shared<TransTask>(std::move(task)), std::make_shared<Latch>()};
        {
            std::lock_guard<std::mutex> lock{mutex_};
            tasks_.emplace(id, entry);
        }
        Dispatch(entry.task, entry.waiter);
        return Detail::TaskHandle{id};
    }
    Expected<bool> Check(Detail::TaskHandle id)
    {
        std::lock_guard<std::mutex> lock{mutex_};
        auto iter = tasks_.find(id);
        if (iter == tasks_.end()) [[unlikely]] { return Unknown(id); }
        auto finished = iter->second.waiter->Check();
        if (!finished) { Kick(); }
        if (finished && !iter->second.task) { tasks_.erase(iter); }
        return finished;
    }
    Status Wait(Detail::TaskHandle id)
    {
        auto task = WaitTask(id);
        return task ? task.Value()->Result() : task.Error();
    }
    /** Ends the task, whatever became of it. */
    Expected<TaskPtr> WaitTask(Detail::TaskHandle id)
    {
        Entry entry;
        {
            std::lock_guard<std::mutex> lock{mutex_};
            auto iter = tasks_.find(id);
            if (iter == tasks_.end()) [[unlikely]] { return Unknown(id); }
            entry = iter->second;
            if (!entry.task) [[unlikely]] {
                return Status{Status::Timeout().Underlying(), fmt::format("gave up task({})", id)};
            }
        }
        if (!Await(entry)) [[unlikely]] {
            entry.task->GiveUp();
            Cancel(entry.task);
            Kick();
            if (!entry.waiter->Check()) { layout_->Guard().GivenUp(entry.waiter); }
            layout_->Guard().Stalled();  // says so
            if (entry.task->type == TransTask::Type::LOAD) { entry.waiter->Wait(); }
        }
        std::lock_guard<std::mutex> lock{mutex_};
        if (entry.waiter->Check()) {
            tasks_.erase(id);
        } else {
            tasks_[id].task.reset();
        }
        return std::move(entry.task);
    }

protected:
    void SetupTasks(const Config& config, const SpaceLayout* layout)
    {
        timeoutMs_ = config.timeoutMs;
        nTensor_ = config.shardSize / config.tensorSize;
        nShard_ = config.blockSize / config.shardSize;
        layout_ = layout;
    }
    virtual void Dispatch(TaskPtr task, WaiterPtr waiter) = 0;
    /** Drops what has not begun. */
    virtual void Cancel(TaskPtr task) = 0;
    /** Called now and then while a task is waited for: threads may have got stuck elsewhere. */
    virtual void Kick() {}
    /** What the waiting thread can do of a load, as long as `inTime`. */
    virtual void Help(const TaskPtr&, const std::function<bool()>& inTime) {}

private:
    struct Entry {
        TaskPtr task;  // none once a dump was given up: only Check() is to follow
        WaiterPtr waiter;
    };

    static Status Unknown(Detail::TaskHandle id)
    {
        return {Status::NotFound().Underlying(), fmt::format("unknown task({})", id)};
    }
    /** False when the timeout passed before the task was over. */
    bool Await(const Entry& entry)
    {
        const auto& waiter = entry.waiter;
        const auto inTime = [&] { return timeoutMs_ == 0 || !waiter->IsTimeout(timeoutMs_); };
        // A load waits for its I/O whatever happens, so it may as well do some of it.
        if (entry.task->type == TransTask::Type::LOAD) { Help(entry.task, inTime); }
        constexpr size_t second = 1000;
        for (auto ms = second; timeoutMs_ == 0 || ms < timeoutMs_; ms += second) {
            if (waiter->WaitFor(ms)) { return true; }
            Kick();
        }
        return waiter->WaitFor(timeoutMs_);
    }

    size_t timeoutMs_{0};  // 0: none
    size_t nTensor_{1};
    size_t nShard_{1};
    const SpaceLayout* layout_{nullptr};
    std::unordered_map<Detail::TaskHandle, Entry> tasks_;
    std::mutex mutex_;
};

}  // namespace UC::PosixStore

#endif
