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
#include "block_writer.h"
#include "logger/logger.h"

namespace UC::PosixStore {

static std::string Parent(const std::string& path) { return path.substr(0, path.rfind('/')); }

/** Folders come with their first block; one that was there may have been removed. */
static Status Make(const std::string& folder)
{
    auto s = PosixFile{folder}.MkDir();
    return s == Status::DuplicateKey() ? Status::OK() : s;
}

Expected<BlockWriter::Options> BlockWriter::Options::From(const Config& config)
{
    const auto& sync = config.sync;
    if (sync != "none" && sync != "data" && sync != "full") {
        return Status::InvalidParam("invalid posix_sync({}): none, data or full", sync);
    }
    return Options{config.blockSize, config.blockSize / config.shardSize, config.ioDirect,
                   sync != "none", sync == "full"};
}

BlockWriter::BlockWriter(const SpaceLayout* layout, const Detail::BlockId& block,
                         const Options& options)
    : layout_{layout},
      block_{block},
      options_{options},
      temp_{layout->TempFilePath(block)},
      final_{layout->DataFilePath(block, false)},
      unnamed_{final_},
      claimed_(options.nShard),
      left_{options.nShard}
{
}

BlockWriter::~BlockWriter()
{
    if (opened_ && !published_) { Discard(); }
}

Status BlockWriter::Open(PosixFile& file)
{
    using Flag = PosixFile::OpenFlag;
    auto flags = Flag::WRITE_ONLY | Flag::NOFOLLOW | (options_.direct ? Flag::DIRECT : 0);
    std::lock_guard<std::mutex> lock{mutex_};
    if (failed_) { return Status::Error(fmt::format("{}: another shard failed", final_)); }
    if (kept_) { return Status::OK(); }
    if (opened_) { return file.Open(flags); }
    kept_ = layout_->Contains(block_, options_.blockSize);
    if (kept_) { return Status::OK(); }
    const auto unnamed = options_.nShard == 1 && !options_.sync && layout_->UnnamedFiles();
    auto s = unnamed ? OpenUnnamed(file, flags) : Status::Unsupported();
    if (s == Status::Unsupported()) { s = OpenNamed(file, flags); }
    opened_ = s.Success();
    return s;
}

Status BlockWriter::OpenUnnamed(PosixFile& file, uint32_t flags)
{
    auto s = file.OpenUnnamed(final_, flags);
    if (s == Status::NotFound()) {
        s = Make(Parent(final_));
        if (s.Success()) { s = file.OpenUnnamed(final_, flags); }
    }
    if (s == Status::Unsupported()) { layout_->GiveUpUnnamedFiles(s.ToString()); }
    if (s.Failure()) { return s; }
    // Some file systems tell a lost write when its file is closed, which is before it has a name.
    s = unnamed_.Share(file);
    if (s.Failure()) { file.Close(); }
    return s;
}

Status BlockWriter::OpenNamed(PosixFile& file, uint32_t flags)
{
    flags |= PosixFile::OpenFlag::CREATE | PosixFile::OpenFlag::EXCL;
    auto s = file.Open(flags);
    if (s.Failure()) {
        s = Make(Parent(temp_));
        if (s.Success()) { s = file.Open(flags); }
    }
    return s;
}

bool BlockWriter::Claim(size_t index)
{
    std::lock_guard<std::mutex> lock{mutex_};
    if (claimed_[index]) { return false; }
    return claimed_[index] = true;
}

Expected<bool> BlockWriter::Seal(PosixFile& file, size_t n, Status s)
{
    if (file.IsOpen()) {
        if (s.Success() && options_.sync) { s = file.Sync(!options_.syncDir); }
        auto closed = file.Close();
        if (s.Success()) { s = std::move(closed); }
    }
    std::lock_guard<std::mutex> lock{mutex_};
    if (s.Failure()) {
        failed_ = true;
        return s;
    }
    left_ -= n;
    return n > 0 && left_ == 0 && !failed_;
}

Status BlockWriter::Publish()
{
    if (kept_) { return Status::OK(); }
    auto s = TakeName();
    if (s.Failure()) {
        std::lock_guard<std::mutex> lock{mutex_};
        failed_ = true;
    }
    return s;
}

Status BlockWriter::TakeName()
{
    auto s = unnamed_.IsOpen() ? unnamed_.ExpectSize(options_.blockSize)
                               : PosixFile{temp_}.ExpectSize(options_.blockSize);
    if (s.Failure()) { return s; }
    // A block is never replaced by another writer's: readers keep the file that they opened.
    if (!unnamed_.IsOpen() && layout_->Contains(block_, options_.blockSize)) {
        return Status::OK();
    }
    s = TakeNameOf(final_);
    // NFS repeats a request whose answer was lost, and the second one finds nothing to rename.
    const auto mayBeThere = s == Status::NotFound() || s == Status::DuplicateKey();
    if (mayBeThere && layout_->Contains(block_, options_.blockSize)) { return Status::OK(); }
    const auto cannotLink = s == Status::NotFound() || s == Status::Unsupported();
    if (cannotLink && unnamed_.IsOpen()) { layout_->GiveUpUnnamedFiles(s.ToString()); }
    if (s == Status::DuplicateKey()) { s = Replace(); }
    if (s.Failure()) { return s; }
    published_ = true;
    if (options_.syncDir) { s = SyncFolder(); }
    if (s.Failure()) { Withdraw(); }
    return s;
}

/** A linked name may be taken already, and says so. */
Status BlockWriter::TakeNameOf(const std::string& path)
{
    const auto take = [&] {
        return unnamed_.IsOpen() ? unnamed_.Link(path) : PosixFile{temp_}.Rename(path);
    };
    auto s = take();
    if (s == Status::NotFound()) {
        s = Make(Parent(path));
        if (s.Success()) { s = take(); }
    }
    return s;
}

/** What has the block's name is no block: too short, or nothing that can be read. */
Status BlockWriter::Replace()
{
    auto s = TakeNameOf(temp_);
    if (s.Success()) { s = PosixFile{temp_}.Rename(final_); }
    if (s.Failure()) { PosixFile{temp_}.Remove(); }
    return s;
}

Status BlockWriter::SyncFolder() const
{
    PosixFile folder{Parent(final_)};
    auto s = folder.Open(PosixFile::OpenFlag::READ_ONLY);
    return s.Success() ? folder.Sync(false) : s;
}

void BlockWriter::Withdraw()
{
    if (published_) { PosixFile{final_}.Remove(); }
    published_ = false;
}

bool BlockWriter::Over() const
{
    std::lock_guard<std::mutex> lock{mutex_};
    return left_ == 0 || failed_ || kept_;
}

void BlockWriter::Discard()
{
    if (!unnamed_.IsOpen()) { PosixFile{temp_}.Remove(); }
}

}  // namespace UC::PosixStore
