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
#ifndef UNIFIEDCACHE_POSIX_STORE_CC_BLOCK_WRITER_H
#define UNIFIEDCACHE_POSIX_STORE_CC_BLOCK_WRITER_H

#include <mutex>
#include <vector>
#include "posix_file.h"
#include "space_layout.h"

namespace UC::PosixStore {

/**
 * @brief Takes one block from a temporary file of its own to its final name.
 *
 * Each user of the writer opens the temporary, writes its shards and seals them; the one whose
 * seal was the last publishes. A block that is never published leaves nothing behind.
 *
 * The temporary of a block of one shard has no name until it is published, where the file system
 * can do that: named ones lie in one folder, whose lock writers share, and the kernel moves files
 * between folders one at a time. Where it turns out that a link is refused, the blocks that are
 * being written are lost once. Not of several shards, which would keep a descriptor until the last
 * one, and not with posix_sync: ext4 with fast_commit cannot recover a file that was flushed
 * before it had a name (seen on Linux 6.18: the file system did not mount).
 */
class BlockWriter {
public:
    struct Options {
        size_t blockSize;
        size_t nShard;
        bool direct;
        bool sync;     // flush the data before the block is published
        bool syncDir;  // and its name before the dump is done

        static Expected<Options> From(const Config& config);
    };

    BlockWriter(const SpaceLayout* layout, const Detail::BlockId& block, const Options& options);
    ~BlockWriter();
    BlockWriter(const BlockWriter&) = delete;
    BlockWriter& operator=(const BlockWriter&) = delete;

    const std::string& TempPath() const { return temp_; }
    /** `file`, made from TempPath(), stays closed if the whole block is already there. */
    Status Open(PosixFile& file);
    /** False if the shard is already claimed: whoever did so writes it. */
    bool Claim(size_t index);
    /** The caller's `n` claimed shards went through `file` with status `s`; true for the last. */
    Expected<bool> Seal(PosixFile& file, size_t n, Status s);
    Status Publish();
    /** Undoes Publish(). */
    void Withdraw();
    /** No shard that is still to come will be published by this writer. */
    bool Over() const;

private:
    Status OpenUnnamed(PosixFile& file, uint32_t flags);
    Status OpenNamed(PosixFile& file, uint32_t flags);
    Status TakeName();
    Status TakeNameOf(const std::string& path);
    Status Replace();
    Status SyncFolder() const;
    void Discard();

    const SpaceLayout* layout_;
    const Detail::BlockId block_;
    const Options options_;
    const std::string temp_;
    const std::string final_;
    PosixFile unnamed_;  // open: the temporary has no name
    mutable std::mutex mutex_;
    std::vector<bool> claimed_;
    size_t left_;
    bool opened_{false};
    bool kept_{false};
    bool failed_{false};
    bool published_{false};
};

}  // namespace UC::PosixStore

#endif
