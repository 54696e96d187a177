// SPDX-License-Identifier: Apache-2.0
// Quantization by an affine formula, 32 numbers at a time with AVX2. Part of elements.cpp.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "elements.hpp"
#include "unroll.hpp"

namespace anybit::lowbit {
namespace {

// Whether indices plus `lowest` fit 16 bits: then instructions that pack numbers clamp them.
bool packs(const ThresholdMap& map) {
  constexpr float most = 32000;
  return map.lowest >= -most && map.lowest + static_cast<float>(map.index_count) <= most;
}

template <ThresholdMap::Method method>
class AffineQuantizer {
 public:
  static constexpr std::int64_t together = 32;

  explicit AffineQuantizer(const ThresholdMap& map)
      : gain_(_mm256_set1_ps(map.gain)),
        offset_(_mm256_set1_ps(map.offset)),
        bottom_(_mm256_set1_ps(map.lowest)),
        top_(_mm256_set1_ps(map.lowest + static_cast<float>(map.index_count - 1))),
        limit_(_mm256_set1_ps(map.limit)),
        lowest_(_mm256_set1_epi16(static_cast<std::int16_t>(map.lowest))),
        last_(_mm256_set1_epi8(static_cast<char>(map.index_count - 1))) {}

  // Writes 32 indices. Returns whether one may be wrong.
  [[gnu::always_inline]] bool write(const float* x, std::uint8_t* to) {
    __m256i indices[4];
    __m256 off = _mm256_setzero_ps(), before = off;
    repeat<4>([&](int i) __attribute__((always_inline)) {
      const __m256 numbers = _mm256_loadu_ps(x + 8 * i);
      if (i % 2 == 0) before = numbers;
      else nan_ = _mm256_or_ps(nan_, _mm256_cmp_ps(before, numbers, _CMP_UNORD_Q));
      // The lower bound: numbers below it are packed to it.
      __m256 y = _mm256_min_ps(scaled(numbers), top_);
      if constexpr (method == ThresholdMap::Method::correct) {
        y = _mm256_max_ps(y, bottom_);
        const __m256 rounded = _mm256_round_ps(y, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        off =
            _mm256_max_ps(off, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_sub_ps(y, rounded)));
      }
      indices[i] = _mm256_cvtps_epi32(y);
    });
    const auto two = [&](int i) __attribute__((always_inline)) {
      return _mm256_subs_epi16(_mm256_packs_epi32(indices[i], indices[i + 1]), lowest_);
    };
    const __m256i bytes = _mm256_min_epu8(_mm256_packus_epi16(two(0), two(2)), last_);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(bytes, order));
    return method == ThresholdMap::Method::correct &&
           _mm256_movemask_ps(_mm256_cmp_ps(off, limit_, _CMP_GE_OQ)) != 0;
  }

  bool has_nan() const { return _mm256_movemask_ps(nan_) != 0; }

 private:
  [[gnu::always_inline]] __m256 scaled(__m256 x) const {
    if constexpr (method == ThresholdMap::Method::divide) return _mm256_div_ps(x, gain_);
    else return _mm256_add_ps(_mm256_mul_ps(x, gain_), offset_);
  }

  __m256 gain_, offset_, bottom_, top_, limit_;
  __m256i lowest_, last_;
  __m256 nan_ = _mm256_setzero_ps();
};

// Returns whether a number is NaN. `correct_all(x, n, to)` corrects indices.
template <ThresholdMap::Method method, class Correct>
bool compute_packed(const ThresholdMap& map, const float* x, std::int64_t n, std::uint8_t* to,
                    Correct&& correct_all) {
  constexpr std::int64_t together = AffineQuantizer<method>::together;
  AffineQuantizer<method> quantizer(map);
  const auto write = [&](const float* numbers, std::uint8_t* indices) {
    if (quantizer.write(numbers, indices)) correct_all(numbers, together, indices);
  };
  std::int64_t done = 0;
  for (; done + together <= n; done += together) write(x + done, to + done);
  if (done == n) return quantizer.has_nan();
  if (n >= together) {  // computes some again
    write(x + n - together, to + n - together);
    return quantizer.has_nan();
  }
  float few[together] = {};
  std::uint8_t indices[together];
  std::memcpy(few, x, static_cast<std::size_t>(n) * sizeof(float));
  write(few, indices);
  std::memcpy(to, indices, static_cast<std::size_t>(n));
  return quantizer.has_nan();
}

}  // namespace
}  // namespace anybit::lowbit
