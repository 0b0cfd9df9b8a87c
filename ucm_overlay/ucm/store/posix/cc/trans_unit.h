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
#ifndef UNIFIEDCACHE_POSIX_STORE_CC_TRANS_UNIT_H
#define UNIFIEDCACHE_POSIX_STORE_CC_TRANS_UNIT_H

#include <list>
#include <memory>
#include <mutex>
#include <sys/uio.h>
#include <unordered_map>
#include <vector>
#include "block_writer.h"
#include "thread/latch.h"
#include "trans_task.h"

namespace UC::PosixStore {

/** What is moved as one: a shard to load, or a block's shards to dump. */
struct TransUnit {
    std::shared_ptr<TransTask> task;
    std::vector<size_t> rows;  // of task->desc
    std::shared_ptr<Latch> waiter;
    bool firstIo{false};

    const Detail::BlockId& Block() const { return task->desc[rows.front()].owner; }
    bool Dump() const { return task->type == TransTask::Type::DUMP; }
    static std::list<TransUnit> Split(const std::shared_ptr<TransTask>& task,
                                      const std::shared_ptr<Latch>& waiter, size_t nShard);
};

/** The writers of blocks whose shards come in several units. */
class BlockWriters {
public:
    using WriterPtr = std::shared_ptr<BlockWriter>;

    void Setup(const SpaceLayout* layout, const BlockWriter::Options& options);
    WriterPtr Acquire(const TransUnit& unit);
    void Release(const TransUnit& unit, const WriterPtr& writer);

private:
    const SpaceLayout* layout_{nullptr};
    BlockWriter::Options options_{};
    std::unordered_map<Detail::BlockId, WriterPtr, Detail::BlockIdHasher> partials_;
    std::mutex mutex_;
};

}  // namespace UC::PosixStore

#endif
