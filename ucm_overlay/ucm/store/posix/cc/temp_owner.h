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
#ifndef UNIFIEDCACHE_POSIX_STORE_CC_TEMP_OWNER_H
#define UNIFIEDCACHE_POSIX_STORE_CC_TEMP_OWNER_H

#include <string>

namespace UC::PosixStore {

/**
 * @brief The process that writes a temporary file, as the file's name tells it:
 *        `<block>.<counter>.<pid>.<start time>.<pid namespace>.<boot id>.<host>`.
 */
struct TempOwner {
    static constexpr const char* Folder = ".tmp";

    std::string pid;
    std::string startTime;
    std::string pidNamespace;
    std::string bootId;
    std::string host;

    static TempOwner Self();
    /** Empty fields when `fileName` is not a temporary file's name. */
    static TempOwner Parse(const std::string& fileName);
    std::string Suffix() const;
    /** Known to have ended: false for a process that cannot be seen from here. */
    bool Dead(const TempOwner& self) const;
};

}  // namespace UC::PosixStore

#endif
