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
#include "io_engine_aio.h"

namespace UC::PosixStore {

IoEngineAio::~IoEngineAio()
{
    const auto drop = [](AioLane& lane, const char* what) {
        auto dropped = lane.Extract([](const AioUnit&) { return true; });
        for (auto& unit : dropped) {
            unit->task->Finish(unit->rows, Status::Error("the store was destroyed"));
            unit->waiter->Done();
        }
        if (!dropped.empty()) { UC_ERROR("Dropped {} accepted {}.", dropped.size(), what); }
    };
    drop(loads_, "loads");
    if (layout_ && layout_->Guard().Stalled()) { drop(dumps_, "dumps"); }
    loads_.Drain();
    dumps_.Drain();
}

Status IoEngineAio::Setup(const Config& config, const SpaceLayout* layout)
{
    SetupTasks(config, layout);
    layout_ = layout;
    tensorSize_ = config.tensorSize;
    shardSize_ = config.shardSize;
    blockSize_ = config.blockSize;
    ioDirect_ = config.ioDirect;
    auto options = BlockWriter::Options::From(config);
    if (!options) [[unlikely]] { return options.Error(); }
    writers_.Setup(layout, options.Value());
    auto s = aio_.Setup(2 * config.aioQueueDepth,
                        [this](AioImpl::Io* io) { OnIoDone(UnitPtr{static_cast<AioUnit*>(io)}); });
    if (s.Failure()) [[unlikely]] { return s; }
    const auto work = [this](UnitPtr unit) { Work(std::move(unit)); };
    s = loads_.Setup(config, config.openConcurrency, work);
    return s.Success() ? dumps_.Setup(config, config.commitConcurrency, work) : s;
}

void IoEngineAio::Dispatch(TaskPtr task, WaiterPtr waiter)
{
    AioLane::Units units;
    for (auto& unit : TransUnit::Split(task, waiter, blockSize_ / shardSize_)) {
        units.push_back(std::make_unique<AioUnit>(std::move(unit)));
    }
    waiter->Set(units.size());
    if (units.empty()) { return; }
    Lane(*units.front()).Push(std::move(units));
}

void IoEngineAio::Cancel(TaskPtr task)
{
    auto& lane = task->type == TransTask::Type::DUMP ? dumps_ : loads_;
    auto dropped = lane.Extract([&](const AioUnit& unit) { return unit.task == task; });
    for (auto& unit : dropped) {
        writers_.Drop(*unit);
        unit->waiter->Done();
    }
}

void IoEngineAio::Kick()
{
    loads_.Kick();
    dumps_.Kick();
}

void IoEngineAio::Work(UnitPtr unit)
{
    auto s = Status::Timeout();
    const auto left = Lane(*unit).Left();
    if (!unit->task->GivenUp()) {
        s = unit->fd < 0 ? Begin(*unit) : Continue(*unit);
    } else if (!unit->writer) {
        writers_.Drop(*unit);
    }
    if (s == Status::Retry()) {
        unit->running.reset();
        if (Lane(*unit).Park(unit, left)) { return; }
    }
    if (s.Success() && !unit->Whole()) {
        auto io = unit.release();
        s = aio_.Submit(*io, io->file->Path());
        if (s.Success()) { return; }
        unit.reset(io);
    }
    Finish(std::move(unit), std::move(s));
}

Status IoEngineAio::Begin(AioUnit& unit)
{
    unit.running.emplace(layout_->Guard());
    auto s = unit.Dump() ? OpenToDump(unit) : OpenToLoad(unit);
    if (s.Failure() || !unit.file->IsOpen()) { return s; }
    unit.fd = unit.file->Handle();
    unit.write = unit.Dump();
    Gather(unit);
    return s;
}

Status IoEngineAio::OpenToLoad(AioUnit& unit)
{
    unit.file.emplace(layout_->DataFilePath(unit.Block(), false));
    const auto direct = ioDirect_ ? PosixFile::OpenFlag::DIRECT : 0;
    // A pipe of that name would hold the thread until somebody writes to it.
    auto s = unit.file->Open(PosixFile::OpenFlag::READ_ONLY | direct | O_NONBLOCK);
    if (s.Success()) { s = unit.file->ExpectSize(blockSize_); }
    unit.shards = {&unit.task->desc[unit.rows.front()]};
    return s;
}

Status IoEngineAio::OpenToDump(AioUnit& unit)
{
    if (!unit.writer) {
        auto writer = writers_.Acquire(unit);
        if (!writer) { return writer.Error(); }
        unit.writer = std::move(writer.Value());
    }
    unit.file.emplace(unit.writer->TempPath());
    auto s = unit.writer->Open(*unit.file);
    if (s.Failure()) { return s; }
    for (auto row : unit.rows) {
        const auto& shard = unit.task->desc[row];
        if (unit.writer->Claim(shard.index)) { unit.shards.push_back(&shard); }
    }
    return s;
}

Status IoEngineAio::Continue(AioUnit& unit)
{
    unit.running->Next();
    auto s = unit.Advance(unit.file->Path());
    if (s.Success() && unit.Whole()) { Gather(unit); }
    return s;
}

void IoEngineAio::Gather(AioUnit& unit) const
{
    unit.pieces.clear();
    unit.first = 0;
    if (unit.gathered == unit.shards.size()) { return; }
    const auto& shard = *unit.shards[unit.gathered++];
    unit.offset = shard.index * shardSize_;
    for (auto addr : shard.addrs) { unit.pieces.push_back({addr, tensorSize_}); }
}

void IoEngineAio::OnIoDone(UnitPtr unit)
{
    // What may block, as publishing does, is for the workers.
    if (!unit->write && unit->result == static_cast<int64_t>(shardSize_)) {
        Finish(std::move(unit), Status::OK());
    } else {
        Lane(*unit).Resume(std::move(unit));
    }
}

void IoEngineAio::Finish(UnitPtr unit, Status s)
{
    auto& writer = unit->writer;
    auto over = unit->fd < 0;
    if (writer) {
        // By now the pages may hold something else.
        if (unit->task->GivenUp()) { s = Status::Timeout(); }
        auto last = writer->Seal(*unit->file, unit->shards.size(), std::move(s));
        s = last ? Status::OK() : last.Error();
        const auto whole = last && last.Value();
        if (whole && !unit->task->GivenUp()) { s = writer->Publish(); }
        over = over || whole;
    }
    unit->file.reset();
    if (s.Failure()) [[unlikely]] {
        UC_ERROR("Failed({}) to {} a block.", s, unit->Dump() ? "dump" : "load");
    }
    const auto told = unit->task->Finish(unit->rows, s);
    if (writer) {
        // Given up while it was renamed: the caller was told that this block is not there.
        if (!told) { writer->Withdraw(); }
        writers_.Release(*unit, writer, told && s.Success(), over);
    }
    auto& lane = Lane(*unit);
    auto waiter = unit->waiter;
    unit.reset();
    lane.Leave();
    waiter->Done();
}

}  // namespace UC::PosixStore
