// SPDX-License-Identifier: Apache-2.0
// Arithmetic on pairs of indices in registers of AVX2. Part of elements.cpp.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "elements.hpp"
#include "unroll.hpp"

namespace anybit::lowbit {
namespace {

// Whether all results fit 32 bits before they are clamped; then none is NaN.
bool fits_32_bits(const PairArithmetic& a, bool multiplies) {
  constexpr float most_difference = 255, most_result = 0x1p30f;
  const auto size = [](float x) { return x < 0 ? -x : x; };
  const auto most = [&](std::int32_t zero, float gain) {
    return (most_difference + size(static_cast<float>(zero))) * size(gain);
  };
  const float x = most(a.zero, a.gain), y = most(a.other_zero, a.other_gain);
  const float result = (multiplies ? x * y : x + y) / a.divisor + size(a.offset);
  const auto shift = static_cast<float>(a.shift);
  const bool in_bytes = a.lowest + shift >= 0 && a.highest + shift <= 255;
  return result < most_result && size(shift) < most_result && in_bytes;
}

// Computes the first multiple of 32 indices and returns their number. Instructions that convert and
// pack numbers round and saturate them as `compute` does.
template <bool multiplies, bool divides>
std::int64_t compute_packed(const PairArithmetic& a, const std::uint8_t* first,
                            const std::uint8_t* second, std::int64_t n, std::uint8_t* to) {
  const __m256i zero = _mm256_set1_epi32(a.zero), other_zero = _mm256_set1_epi32(a.other_zero);
  const __m256i shift = _mm256_set1_epi32(a.shift);
  const __m256 gain = _mm256_set1_ps(a.gain), other_gain = _mm256_set1_ps(a.other_gain);
  const __m256 offset = _mm256_set1_ps(a.offset), divisor = _mm256_set1_ps(a.divisor);
  const auto byte = [&](float bound) {
    return _mm256_set1_epi8(static_cast<char>(static_cast<std::int32_t>(bound) + a.shift));
  };
  const __m256i lowest = byte(a.lowest), highest = byte(a.highest);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const auto operand = [](const std::uint8_t* from, __m256i less,
                          __m256 scale) __attribute__((always_inline)) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    const __m256i difference = _mm256_sub_epi32(_mm256_cvtepu8_epi32(bytes), less);
    return _mm256_mul_ps(_mm256_cvtepi32_ps(difference), scale);
  };
  std::int64_t i = 0;
  for (; i + 32 <= n; i += 32) {
    __m256i results[4];
    repeat<4>([&](int p) __attribute__((always_inline)) {
      const __m256 x = operand(first + i + 8 * p, zero, gain);
      const __m256 other = operand(second + i + 8 * p, other_zero, other_gain);
      __m256 y = multiplies ? _mm256_mul_ps(x, other) : _mm256_add_ps(x, other);
      if constexpr (divides) y = _mm256_div_ps(y, divisor);
      results[p] = _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_add_ps(y, offset)), shift);
    });
    const __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(results[0], results[1]),
                                              _mm256_packs_epi32(results[2], results[3]));
    const __m256i inside = _mm256_min_epu8(_mm256_max_epu8(bytes, lowest), highest);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i),
                        _mm256_permutevar8x32_epi32(inside, order));
  }
  return i;
}

}  // namespace
}  // namespace anybit::lowbit
