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
#ifndef UNIFIEDCACHE_POSIX_STORE_CC_WORKER_POOL_H
#define UNIFIEDCACHE_POSIX_STORE_CC_WORKER_POOL_H

#include <atomic>
#include <condition_variable>
#include <functional>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#include "status/status.h"

namespace UC::PosixStore {

/** Work in steps, each of which another thread may take. */
class Job {
public:
    virtual ~Job() = default;
    /** Takes one step; false once there is none left to take. */
    virtual bool Step() = 0;
};

/**
 * @brief The threads that do the I/O of all stores of a process.
 *
 * Each store has lanes here: queues of jobs, each with a limit to the threads that serve it at
 * once. Threads are started when work finds none of them idle, up to the largest limit of all
 * lanes. One that has been in a step for a second does not count: a mount that hangs takes no
 * more threads than its own lanes may have, and none that other stores need. Once it moves again
 * there is one too many, which ends after a while without work. Lanes that move are served before
 * those that are stuck.
 */
class WorkerPool {
public:
    class Lane {
    public:
        using JobPtr = std::shared_ptr<Job>;
        using Match = std::function<bool(const Job&)>;

        /** Joins the pool of the stores that are pinned to the same cores. */
        Status Setup(size_t limit, const std::vector<ssize_t>& cores);
        /** Waits until every job that it still has is done. */
        ~Lane();
        size_t Limit() const { return limit_; }
        /** `steps`: how many threads the job can use. */
        void Push(JobPtr job, size_t steps);
        /** Wakes no thread for the job: Help(), Kick() or the pool's next job sees to it. */
        void Leave(JobPtr job);
        /** The calling thread serves the job that matches too, where the limit leaves room. */
        void Help(const Match& match, const std::function<bool()>& goOn);
        /**
         * Looks whether threads are missing, for some that are there have got stuck. In all lanes:
         * nobody may be waiting yet for what has lost its threads to this one.
         */
        void Kick();
        /** No further step of the jobs that match is begun. */
        std::list<JobPtr> Remove(const Match& match);

    private:
        friend class WorkerPool;
        void Staff(size_t wanted = std::numeric_limits<size_t>::max());
        /** Its threads are in steps, and none of them has ended one for a second. */
        bool Stuck() const;
        std::shared_ptr<WorkerPool> pool_;
        size_t limit_{0};
        size_t running_{0};
        int64_t moved_{0};  // when a step ended or the first one began, in ms
        std::list<JobPtr> jobs_;
        std::condition_variable idle_;
    };

    explicit WorkerPool(std::vector<ssize_t> cores) : cores_{std::move(cores)} {}
    ~WorkerPool();
    WorkerPool(const WorkerPool&) = delete;
    WorkerPool& operator=(const WorkerPool&) = delete;

private:
    struct Worker {
        std::thread thread;
        int64_t busySince{0};  // ms; 0: idle
    };
    using Lock = std::unique_lock<std::mutex>;

    static std::shared_ptr<WorkerPool> Shared(const std::vector<ssize_t>& cores);
    Status StartOne();
    void JoinRetired();
    size_t Limit() const;
    bool TooMany() const;
    void Retire(Worker& self);
    void Staff(size_t wanted);
    void StaffLeft();
    Lane* NextLane();
    static void Serve(Lane& lane, Lane::JobPtr job, Lock& lock);
    void Loop(Worker& self);

    const std::vector<ssize_t> cores_;
    std::mutex mutex_;
    std::condition_variable work_;
    std::list<Lane*> lanes_;
    Lane* left_{nullptr};  // has a job that no thread was woken for
    std::list<Worker> workers_;
    std::list<Worker> retired_;  // one too many, to be joined
    size_t nIdle_{0};
    size_t nWoken_{0};  // of the idle ones, that have not noticed yet
    bool stop_{false};
};

}  // namespace UC::PosixStore

#endif
