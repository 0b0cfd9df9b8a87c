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
#ifndef UNIFIEDCACHE_POSIX_STORE_CC_BLOCK_COLLECTOR_H
#define UNIFIEDCACHE_POSIX_STORE_CC_BLOCK_COLLECTOR_H

#include <atomic>
#include <ctime>
#include <map>
#include <string>
#include <vector>
#include "global_config.h"

namespace UC::PosixStore {

/** A store's folder, and the bytes of each block in it; 0: any number. */
struct BlockRoot {
    std::string path;  // ends with a slash
    size_t blockSize;
};

/**
 * @brief Keeps the blocks below some roots within a number of bytes: the oldest go first.
 *
 * A block is what its store could have written: a regular file of the right size, with a block's
 * name, in the folder that this name begins with. Nothing else counts and nothing else goes, but
 * a block's temporary that is too old to have a writer. A block takes its length: what the file
 * system has allocated for it just now (ahead, late, compressed) bounds nothing. Its age is that
 * of its last change; HotnessTracker renews it.
 */
class BlockCollector {
public:
    using Roots = std::vector<BlockRoot>;
    struct Report {
        size_t heldBytes{0};  // before, as far as it was counted
        size_t removedBytes{0};
        size_t removedBlocks{0};
        size_t failures{0};
        std::string failure;  // the first one
    };

    explicit BlockCollector(const Config& config);
    /** Bytes from which on blocks are removed. */
    size_t Limit() const { return limit_; }
    Report Collect(const Roots& roots);
    /** Lets Collect() return soon. */
    void Stop() { stop_ = true; }

private:
    struct Folder;
    using Folders = std::vector<Folder>;
    struct Usage {
        size_t bytes{0};
        std::map<time_t, size_t> bytesByTime;
    };
    /** All blocks older than `time` are to go, and of those as old as it `bytes`. */
    struct Cut {
        time_t time{0};
        size_t bytes{0};
    };

    static Folders FoldersOf(const BlockRoot& root);
    template <typename Fn>
    void InParallel(const Folders& folders, Fn&& fn) const;
    template <typename Fn>
    void ForEachBlock(const Folder& folder, Fn&& fn) const;
    bool AboutFull(const std::vector<Folders>& roots) const;
    Usage Measure(const Folders& folders) const;
    Cut Oldest(const Usage& usage) const;
    /** True when a folder has more to remove than may be removed at once. */
    bool Remove(const Folders& folders, const Cut& cut, Report& report) const;

    const size_t limit_;
    const size_t goal_;
    const size_t maxPerFolder_;
    const double sampleRatio_;
    const size_t nThread_;
    const time_t tempAge_;
    std::atomic<bool> stop_{false};
};

}  // namespace UC::PosixStore

#endif
