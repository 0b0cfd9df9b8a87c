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
#include <cstdio>
#include <dirent.h>
#include <memory>
#include <set>

namespace UC::PosixStore {

/** As the folder's name tells it; 0 when it does not. */
static size_t BlockSizeOf(const std::string& name)
{
    const auto at = name.rfind('_');
    if (at == std::string::npos) { return 0; }
    unsigned long long bytes = 0, number = 0;
    int end = 0;
    const auto sizes = name.c_str() + at;
    if (sscanf(sizes, "_%15llux%9llu%n", &bytes, &number, &end) != 2) { return 0; }
    return sizes[end] == '\0' ? bytes * number : 0;
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
            if (blockSize > 0) { roots.push_back({parent.path + name + "/", blockSize}); }
        }
    }
    return roots;
}

}  // namespace UC::PosixStore
