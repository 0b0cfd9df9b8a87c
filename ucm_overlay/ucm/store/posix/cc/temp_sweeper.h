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
#ifndef UNIFIEDCACHE_POSIX_STORE_CC_TEMP_SWEEPER_H
#define UNIFIEDCACHE_POSIX_STORE_CC_TEMP_SWEEPER_H

#include <atomic>
#include <string>
#include <thread>
#include <vector>
#include "status/status.h"
#include "temp_owner.h"

namespace UC::PosixStore {

/**
 * @brief Removes, once and in the background, the temporaries that their writers left behind:
 *        at once where the writer is known to be dead, after an hour where nothing is known.
 */
class TempSweeper {
public:
    ~TempSweeper();
    Status Start(std::vector<std::string> folders, size_t timeoutMs);

private:
    size_t Sweep(const std::string& folder) const;

    TempOwner self_;
    size_t maxAgeSec_{0};
    std::atomic<bool> stop_{false};
    std::thread worker_;
};

}  // namespace UC::PosixStore

#endif
