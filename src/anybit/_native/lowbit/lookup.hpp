// SPDX-License-Identifier: Apache-2.0
// Lookup of bytes in a table of 256. Part of elements.cpp.
#pragma once

#include <cstdint>

#include "unroll.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace anybit::lowbit {
namespace {

#if defined(__AVX512BW__)
// Sixteen tables of 16, each looked up for 64 bytes by one instruction; the upper bits of a byte
// select the result.
class Table256 {
 public:
  explicit Table256(const std::uint8_t* table) {
    repeat<16>([&](int i) __attribute__((always_inline)) {
      parts_[i] =
          _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table + 16 * i)));
    });
  }

  [[gnu::always_inline]] __m512i operator()(__m512i bytes) const {
    const __m512i low = _mm512_and_si512(bytes, _mm512_set1_epi8(15));
    const __mmask64 bit4 = _mm512_movepi8_mask(_mm512_slli_epi16(bytes, 3)),
                    bit5 = _mm512_movepi8_mask(_mm512_slli_epi16(bytes, 2)),
                    bit6 = _mm512_movepi8_mask(_mm512_slli_epi16(bytes, 1)),
                    bit7 = _mm512_movepi8_mask(bytes);
    __m512i results[8];
    repeat<8>([&](int i) __attribute__((always_inline)) {
      const __m512i even = _mm512_shuffle_epi8(parts_[2 * i], low);
      results[i] = _mm512_mask_shuffle_epi8(even, bit4, parts_[2 * i + 1], low);
    });
    const auto halve = [&](__mmask64 upper, int i) __attribute__((always_inline)) {
      results[i] = _mm512_mask_mov_epi8(results[2 * i], upper, results[2 * i + 1]);
    };
    repeat<4>([&](int i) __attribute__((always_inline)) { halve(bit5, i); });
    repeat<2>([&](int i) __attribute__((always_inline)) { halve(bit6, i); });
    halve(bit7, 0);
    return results[0];
  }

 private:
  __m512i parts_[16];
};

void lookup(const std::uint8_t* table, const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
  const Table256 entries(table);
  std::int64_t i = 0;
  for (; i + 64 <= n; i += 64) _mm512_storeu_si512(to + i, entries(_mm512_loadu_si512(from + i)));
  if (i == n) return;
  const __mmask64 rest = ~__mmask64{0} >> (64 - (n - i));
  _mm512_mask_storeu_epi8(to + i, rest, entries(_mm512_maskz_loadu_epi8(rest, from + i)));
}
#elif defined(__AVX2__)
// The same for 32 bytes.
class Table256 {
 public:
  explicit Table256(const std::uint8_t* table) : table_(table) {}

  [[gnu::always_inline]] __m256i operator()(__m256i bytes) const {
    const __m256i low = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
    // The highest bit of a byte selects; what the shifts carry in from other bytes is below it.
    const __m256i bit4 = _mm256_slli_epi16(bytes, 3), bit5 = _mm256_slli_epi16(bytes, 2),
                  bit6 = _mm256_slli_epi16(bytes, 1);
    __m256i halves[2];
    repeat<2>([&](int half) __attribute__((always_inline)) {
      __m256i results[4];
      repeat<4>([&](int i) __attribute__((always_inline)) {
        const int part = 8 * half + 2 * i;
        results[i] = _mm256_blendv_epi8(_mm256_shuffle_epi8(part_at(part), low),
                                        _mm256_shuffle_epi8(part_at(part + 1), low), bit4);
      });
      halves[half] = _mm256_blendv_epi8(_mm256_blendv_epi8(results[0], results[1], bit5),
                                        _mm256_blendv_epi8(results[2], results[3], bit5), bit6);
    });
    return _mm256_blendv_epi8(halves[0], halves[1], bytes);
  }

 private:
  [[gnu::always_inline]] __m256i part_at(int i) const {
    return _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(table_ + 16 * i)));
  }

  const std::uint8_t* table_;
};

void lookup(const std::uint8_t* table, const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
  const Table256 entries(table);
  std::int64_t i = 0;
  for (; i + 32 <= n; i += 32)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                        entries(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i))));
  for (; i < n; ++i) to[i] = table[from[i]];
}
#else
void lookup(const std::uint8_t* table, const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = table[from[i]];
}
#endif

}  // namespace
}  // namespace anybit::lowbit
