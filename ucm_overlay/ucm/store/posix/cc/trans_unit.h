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

/**
 * @brief The writers of blocks whose shards come in several units.
 *
 * A shard that is lost spoils the try: its other shards fail as well. A new try begins when a
 * shard comes again, or when all have come.
 */
class BlockWriters {
public:
    using WriterPtr = std::shared_ptr<BlockWriter>;

    void Setup(const SpaceLayout* layout, const BlockWriter::Options& options);
    Expected<WriterPtr> Acquire(const TransUnit& unit);
    /** `ok`: the unit's shards are written; `over`: no other shard of the block is needed. */
    void Release(const TransUnit& unit, const WriterPtr& writer, bool ok, bool over);
    /** The unit is not going to be dumped. */
    void Drop(const TransUnit& unit);

private:
    struct Try {
        WriterPtr writer;  // none once a shard was lost
        std::vector<bool> seen;
    };
    using Tries = std::unordered_map<Detail::BlockId, Try, Detail::BlockIdHasher>;

    bool Whole(const TransUnit& unit) const { return unit.rows.size() == options_.nShard; }
    WriterPtr Make(const TransUnit& unit) const;
    void Spoil(Tries::iterator iter);

    const SpaceLayout* layout_{nullptr};
    BlockWriter::Options options_{};
    Tries tries_;
    std::mutex mutex_;
};

}  // namespace UC::PosixStore

#endif
