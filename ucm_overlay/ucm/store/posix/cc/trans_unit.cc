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
#include "trans_unit.h"
#include <algorithm>

namespace UC::PosixStore {

std::list<TransUnit> TransUnit::Split(const std::shared_ptr<TransTask>& task,
                                      const std::shared_ptr<Latch>& waiter, size_t nShard)
{
    const auto grouped = task->type == TransTask::Type::DUMP && nShard > 1;
    std::list<TransUnit> units;
    std::unordered_map<Detail::BlockId, TransUnit*, Detail::BlockIdHasher> groups;
    for (size_t row = 0; row < task->desc.size(); row++) {
        if (!grouped) {
            units.push_back({task, {row}, waiter});
            continue;
        }
        const auto& shard = task->desc[row];
        auto& group = groups[shard.owner];
        const auto same = [&](size_t other) { return task->desc[other].index == shard.index; };
        // A shard that comes again belongs to another writer of the block.
        if (!group || std::any_of(group->rows.begin(), group->rows.end(), same)) {
            units.push_back({task, {}, waiter});
            group = &units.back();
        }
        group->rows.push_back(row);
    }
    if (!units.empty()) { units.front().firstIo = true; }
    return units;
}

void BlockWriters::Setup(const SpaceLayout* layout, const BlockWriter::Options& options)
{
    layout_ = layout;
    options_ = options;
}

Expected<BlockWriters::WriterPtr> BlockWriters::Acquire(const TransUnit& unit)
{
    if (Whole(unit)) { return Make(unit); }
    const auto& desc = unit.task->desc;
    std::lock_guard<std::mutex> lock{mutex_};
    auto iter = tries_.try_emplace(unit.Block()).first;
    auto& [writer, seen] = iter->second;
    const auto again = [&](size_t row) { return seen[desc[row].index]; };
    if (seen.empty() || (!writer && std::any_of(unit.rows.begin(), unit.rows.end(), again))) {
        writer = Make(unit);
        seen.assign(options_.nShard, false);
    }
    for (auto row : unit.rows) { seen[desc[row].index] = true; }
    if (writer) { return WriterPtr{writer}; }
    Spoil(iter);
    return Status::Error(
        fmt::format("{}: another shard failed", layout_->DataFilePath(unit.Block(), false)));
}

void BlockWriters::Release(const TransUnit& unit, const WriterPtr& writer, bool ok, bool over)
{
    if (Whole(unit) || (ok && !over)) { return; }
    std::lock_guard<std::mutex> lock{mutex_};
    auto iter = tries_.find(unit.Block());
    if (iter == tries_.end() || iter->second.writer != writer) { return; }
    if (ok) {
        tries_.erase(iter);
    } else {
        Spoil(iter);
    }
}

void BlockWriters::Drop(const TransUnit& unit)
{
    if (!unit.Dump() || Whole(unit)) { return; }
    std::lock_guard<std::mutex> lock{mutex_};
    auto iter = tries_.try_emplace(unit.Block()).first;
    auto& seen = iter->second.seen;
    seen.resize(options_.nShard);
    for (auto row : unit.rows) { seen[unit.task->desc[row].index] = true; }
    Spoil(iter);
}

BlockWriters::WriterPtr BlockWriters::Make(const TransUnit& unit) const
{
    return std::make_shared<BlockWriter>(layout_, unit.Block(), options_);
}

void BlockWriters::Spoil(Tries::iterator iter)
{
    auto& [writer, seen] = iter->second;
    writer.reset();
    if (std::find(seen.begin(), seen.end(), false) == seen.end()) { tries_.erase(iter); }
}

}  // namespace UC::PosixStore
