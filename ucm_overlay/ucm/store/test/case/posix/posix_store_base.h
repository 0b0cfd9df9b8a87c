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
#ifndef UNIFIEDCACHE_TEST_POSIX_STORE_BASE_H
#define UNIFIEDCACHE_TEST_POSIX_STORE_BASE_H

#include <fcntl.h>
#include <fmt/ranges.h>
#include <memory>
#include <sys/stat.h>
#include <unistd.h>
#include "detail/path_base.h"
#include "detail/types_helper.h"
#include "ucmstore_v1.h"

extern "C" UC::StoreV1* MakePosixStore();

namespace UC::Test::Detail {

/** Page-aligned host memory for `nBlock` blocks. */
class HostPages {
public:
    HostPages(size_t nBlock, size_t blockSize, uint8_t fill = 0)
        : size_{nBlock * blockSize}, data_{static_cast<uint8_t*>(aligned_alloc(4096, Round(size_)))}
    {
        std::fill(data_, data_ + size_, fill);
    }
    ~HostPages() { free(data_); }
    HostPages(const HostPages&) = delete;
    HostPages& operator=(const HostPages&) = delete;
    uint8_t* Data() const { return data_; }
    std::string Bytes() const { return {reinterpret_cast<const char*>(data_), size_}; }
    HostPages& Number()
    {
        for (size_t i = 0; i < size_; i++) { data_[i] = static_cast<uint8_t>(i * 31 + i / 251); }
        return *this;
    }

private:
    static size_t Round(size_t size) { return (size + 4095) / 4096 * 4096; }
    size_t size_;
    uint8_t* data_;
};

/** A store as the pipeline makes it, on the test's own folder. */
class PosixStoreBase : public PathBase {
protected:
    using Blocks = std::vector<UC::Detail::BlockId>;
    size_t tensorSize_{4096};
    size_t nTensor_{1};
    size_t nShard_{1};

    size_t BlockSize() const { return tensorSize_ * nTensor_ * nShard_; }
    UC::Detail::Dictionary MakeConfig() const
    {
        UC::Detail::Dictionary config;
        config.Set("storage_backends", std::vector<std::string>{Path()});
        config.SetNumber("device_id", 0);
        config.SetNumber("tensor_size", tensorSize_);
        config.SetNumber("shard_size", tensorSize_ * nTensor_);
        config.SetNumber("block_size", BlockSize());
        config.SetNumber("data_dir_shard_bytes", 1);
        config.SetNumber("posix_data_trans_concurrency", 4);
        config.SetNumber("posix_lookup_concurrency", 2);
        return config;
    }
    static std::unique_ptr<StoreV1> MakeStore(const UC::Detail::Dictionary& config)
    {
        std::unique_ptr<StoreV1> store{MakePosixStore()};
        const auto s = store->Setup(config);
        EXPECT_TRUE(s.Success()) << s.ToString();
        return store;
    }
    std::unique_ptr<StoreV1> MakeStore() const { return MakeStore(MakeConfig()); }
    static Blocks MakeBlocks(size_t n)
    {
        Blocks blocks(n);
        for (auto& block : blocks) { block = TypesHelper::MakeBlockIdRandomly(); }
        return blocks;
    }
    /** Every shard of every block, the pieces laid one after the other in `pages`. */
    UC::Detail::TaskDesc MakeDesc(const Blocks& blocks, const HostPages& pages) const
    {
        UC::Detail::TaskDesc desc;
        auto addr = pages.Data();
        for (const auto& block : blocks) {
            for (size_t index = 0; index < nShard_; index++) {
                UC::Detail::Shard shard{block, index, {}};
                for (size_t i = 0; i < nTensor_; i++, addr += tensorSize_) {
                    shard.addrs.push_back(addr);
                }
                desc.push_back(std::move(shard));
            }
        }
        return desc;
    }
    Status Dump(StoreV1& store, const Blocks& blocks, const HostPages& pages) const
    {
        return store.Wait(store.Dump(MakeDesc(blocks, pages)).Value());
    }
    Status Load(StoreV1& store, const Blocks& blocks, const HostPages& pages) const
    {
        return store.Wait(store.Load(MakeDesc(blocks, pages)).Value());
    }
    std::string File(const UC::Detail::BlockId& block) const
    {
        const auto name = fmt::format("{:02x}", fmt::join(block, ""));
        return Path() + name.substr(0, 1) + "/" + name;
    }
    /** Whether the file system of the test has files without a name: ext4, xfs, btrfs, tmpfs. */
    bool HasUnnamedFiles() const
    {
        const auto fd = open(Path().c_str(), O_TMPFILE | O_WRONLY, 0600);
        if (fd >= 0) { close(fd); }
        return fd >= 0;
    }
    /** -1 when there is no such file. */
    ssize_t FileSize(const UC::Detail::BlockId& block) const
    {
        struct stat st;
        return ::stat(File(block).c_str(), &st) == 0 ? st.st_size : -1;
    }
};

}  // namespace UC::Test::Detail

#endif
