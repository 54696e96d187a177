// SPDX-License-Identifier: Apache-2.0
// Lookup of bytes in a table of 256. Part of elements.cpp.
#pragma once

#include <cstdint>

#include "unroll.hpp"

#if defined(__AVX512BW__)
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
#else
void lookup(const std::uint8_t* table, const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = table[from[i]];
}
#endif

}  // namespace
}  // namespace anybit::lowbit
