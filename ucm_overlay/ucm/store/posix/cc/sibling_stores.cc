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
#include "sibling_stores.h"
#include <charconv>
#include <dirent.h>
#include <fcntl.h>
#include <memory>
#include <set>
#include <sys/stat.h>

namespace UC::PosixStore {

/** As the folder's name tells it; 0 when it does not. */
static size_t BlockSizeOf(const std::string& name)
{
    const auto at = name.rfind('_');
    if (at == std::string::npos) { return 0; }
    size_t bytes = 0, number = 0, size = 0;
    const auto end = name.data() + name.size();
    const auto [x, noBytes] = std::from_chars(name.data() + at + 1, end, bytes);
    if (noBytes != std::errc{} || x == end || *x != 'x') { return 0; }
    const auto [rest, noNumber] = std::from_chars(x + 1, end, number);
    if (noNumber != std::errc{} || rest != end) { return 0; }
    return __builtin_mul_overflow(bytes, number, &size) ? 0 : size;
}

BlockCollector::Roots SiblingStores::ParentsOf(const std::vector<std::string>& backends)
{
    std::set<std::string> parents;
    for (const auto& backend : backends) {
        const auto slash = backend.rfind('/', backend.find_last_not_of('/'));
        parents.insert(slash == std::string::npos ? "./" : backend.substr(0, slash + 1));
    }
    BlockCollector::Roots roots;
    for (const auto& parent : parents) { roots.push_back({parent, 0}); }
    return roots;
}

BlockCollector::Roots SiblingStores::In(const BlockCollector::Roots& parents)
{
    BlockCollector::Roots roots;
    for (const auto& parent : parents) {
        const std::unique_ptr<DIR, int (*)(DIR*)> dir{opendir(parent.path.c_str()), closedir};
        while (auto entry = dir ? readdir(dir.get()) : nullptr) {
            const std::string name{entry->d_name};
            const auto blockSize = BlockSizeOf(name);
            struct stat st;  // a link may name anybody's folder
            if (blockSize == 0 ||
                fstatat(dirfd(dir.get()), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0) {
                continue;
            }
            if (S_ISDIR(st.st_mode)) { roots.push_back({parent.path + name + "/", blockSize}); }
        }
    }
    return roots;
}

}  // namespace UC::PosixStore
