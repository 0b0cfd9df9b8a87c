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
#ifndef UNIFIEDCACHE_PIPELINE_STORE_CPY_MD5_LANES_H
#define UNIFIEDCACHE_PIPELINE_STORE_CPY_MD5_LANES_H

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace UC::PipelineStore {

/**
 * @brief MD5 (RFC 1321) of several short texts at once, each in a lane of the vector unit.
 *
 * One digest is a chain of 64 dependent steps a block, which leaves most of a core idle. Not for
 * security: the digests only name blocks.
 */
class Md5Lanes {
public:
    static constexpr size_t N = 4;  // what every 64-bit x86 and Arm has
    using Digest = std::array<uint8_t, 16>;

    /** Adds a text, heads and tail joined; true when all lanes are taken. */
    bool Add(std::string_view head, std::string_view tail)
    {
        const auto size = head.size() + tail.size();
        auto& text = texts_[used_++];
        text.assign((size + 8) / BlockBytes * BlockBytes + BlockBytes, '\0');
        std::memcpy(text.data(), head.data(), head.size());
        std::memcpy(text.data() + head.size(), tail.data(), tail.size());
        text[size] = '\x80';
        const uint64_t bits = size * 8;
        for (size_t i = 0; i < 8; i++) { text[text.size() - 8 + i] = char(bits >> (8 * i)); }
        return used_ == N;
    }
    size_t Used() const { return used_; }
    /** The digests of the texts that were added, in their order; the lanes are free again. */
    const std::array<Digest, N>& Run()
    {
        size_t nBlock = 0;
        for (size_t lane = 0; lane < used_; lane++) {
            nBlock = std::max(nBlock, texts_[lane].size() / BlockBytes);
        }
        std::array<Lanes, 4> state;
        constexpr uint32_t start[] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476};
        for (size_t i = 0; i < 4; i++) { state[i] = Lanes{} + start[i]; }
        for (size_t block = 0; block < nBlock; block++) {
            Round(state, block);
            Collect(state, block + 1);
        }
        used_ = 0;
        return digests_;
    }

private:
    static constexpr size_t BlockBytes = 64;
    using Lanes = uint32_t __attribute__((vector_size(N * sizeof(uint32_t))));

    /** floor(2^32 |sin(i + 1)|) */
    static const std::array<uint32_t, 64>& Sines()
    {
        static const auto sines = [] {
            std::array<uint32_t, 64> values;
            for (size_t i = 0; i < 64; i++) {
                values[i] =
                    static_cast<uint32_t>(std::floor(4294967296.0 * std::fabs(std::sin(i + 1.0))));
            }
            return values;
        }();
        return sines;
    }
    std::array<Lanes, 16> Words(size_t block) const
    {
        std::array<Lanes, 16> words{};
        for (size_t lane = 0; lane < used_; lane++) {
            const auto& text = texts_[lane];
            if ((block + 1) * BlockBytes > text.size()) { continue; }  // it was shorter
            uint32_t own[16];
            std::memcpy(own, text.data() + block * BlockBytes, BlockBytes);
            for (size_t i = 0; i < 16; i++) { words[i][lane] = own[i]; }
        }
        return words;
    }
    template <size_t First, typename Mix>
    static void Steps(std::array<Lanes, 4>& s, const std::array<Lanes, 16>& words,
                      const std::array<int, 4>& turns, size_t stride, size_t offset, Mix&& mix)
    {
        const auto& sines = Sines();
        for (size_t i = 0; i < 16; i++) {
            const auto sum =
                s[0] + mix(s[1], s[2], s[3]) + sines[First + i] + words[(stride * i + offset) % 16];
            const auto turn = turns[i % 4];
            const auto b = s[1] + ((sum << turn) | (sum >> (32 - turn)));
            s = {s[3], b, s[1], s[2]};
        }
    }
    void Round(std::array<Lanes, 4>& state, size_t block) const
    {
        const auto words = Words(block);
        auto s = state;
        Steps<0>(s, words, {7, 12, 17, 22}, 1, 0,
                 [](Lanes b, Lanes c, Lanes d) { return (b & c) | (~b & d); });
        Steps<16>(s, words, {5, 9, 14, 20}, 5, 1,
                  [](Lanes b, Lanes c, Lanes d) { return (d & b) | (~d & c); });
        Steps<32>(s, words, {4, 11, 16, 23}, 3, 5,
                  [](Lanes b, Lanes c, Lanes d) { return b ^ c ^ d; });
        Steps<48>(s, words, {6, 10, 15, 21}, 7, 0,
                  [](Lanes b, Lanes c, Lanes d) { return c ^ (b | ~d); });
        for (size_t i = 0; i < 4; i++) { state[i] += s[i]; }
    }
    /** Takes the digests of the texts that have `nBlock` blocks. */
    void Collect(const std::array<Lanes, 4>& state, size_t nBlock)
    {
        for (size_t lane = 0; lane < used_; lane++) {
            if (texts_[lane].size() != nBlock * BlockBytes) { continue; }
            const std::array<uint32_t, 4> words{state[0][lane], state[1][lane], state[2][lane],
                                                state[3][lane]};
            std::memcpy(&digests_[lane], &words, sizeof(words));
        }
    }

    std::array<std::string, N> texts_;
    std::array<Digest, N> digests_;
    size_t used_{0};
};

}  // namespace UC::PipelineStore

#endif
