// SPDX-License-Identifier: Apache-2.0
// Quantization by a formula, 32 numbers at a time with AVX2 and 64 with AVX-512. Part of
// elements.cpp.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "elements.hpp"
#include "unroll.hpp"

namespace anybit::lowbit {
namespace {

// Instructions on whole registers. Those that pack numbers work within parts of 16 bytes.
#if defined(__AVX512F__)
struct WholeRegisters {
  using Floats = __m512;
  using Integers = __m512i;
  static Floats all(float x) { return _mm512_set1_ps(x); }
  static Integers all(std::int16_t x) { return _mm512_set1_epi16(x); }
  static Integers all(std::int8_t x) { return _mm512_set1_epi8(x); }
  static Floats read(const float* x) { return _mm512_loadu_ps(x); }
  static Floats add(Floats x, Floats y) { return _mm512_add_ps(x, y); }
  static Floats subtract(Floats x, Floats y) { return _mm512_sub_ps(x, y); }
  static Floats multiply(Floats x, Floats y) { return _mm512_mul_ps(x, y); }
  static Floats divide(Floats x, Floats y) { return _mm512_div_ps(x, y); }
  static Floats fused(Floats x, Floats y, Floats z) { return _mm512_fmadd_ps(x, y, z); }
  static Floats fused_off(Floats x, Floats y, Floats z) { return _mm512_fnmadd_ps(x, y, z); }
  static Floats least(Floats x, Floats y) { return _mm512_min_ps(x, y); }
  static Floats largest(Floats x, Floats y) { return _mm512_max_ps(x, y); }
  static Floats magnitude(Floats x) { return _mm512_abs_ps(x); }
  static Floats rounded(Floats x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Integers nearest(Floats x) { return _mm512_cvtps_epi32(x); }
  static bool any_at_least(Floats x, Floats y) { return _mm512_cmp_ps_mask(x, y, _CMP_GE_OQ) != 0; }
  static Integers narrow(Integers x, Integers y) { return _mm512_packs_epi32(x, y); }
  static Integers narrow_unsigned(Integers x, Integers y) { return _mm512_packus_epi16(x, y); }
  static Integers subtract_saturating(Integers x, Integers y) { return _mm512_subs_epi16(x, y); }
  static Integers least_bytes(Integers x, Integers y) { return _mm512_min_epu8(x, y); }
  // Stores the bytes of packed numbers in their order.
  static void store(std::uint8_t* to, Integers bytes) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, bytes));
  }

  // Whether a number was NaN.
  struct Nans {
    __mmask16 any = 0;
    void add(Floats x, Floats y) {
      any = static_cast<__mmask16>(any | _mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q));
    }
    bool exist() const { return any != 0; }
  };
};
#else
struct WholeRegisters {
  using Floats = __m256;
  using Integers = __m256i;
  static Floats all(float x) { return _mm256_set1_ps(x); }
  static Integers all(std::int16_t x) { return _mm256_set1_epi16(x); }
  static Integers all(std::int8_t x) { return _mm256_set1_epi8(x); }
  static Floats read(const float* x) { return _mm256_loadu_ps(x); }
  static Floats add(Floats x, Floats y) { return _mm256_add_ps(x, y); }
  static Floats subtract(Floats x, Floats y) { return _mm256_sub_ps(x, y); }
  static Floats multiply(Floats x, Floats y) { return _mm256_mul_ps(x, y); }
  static Floats divide(Floats x, Floats y) { return _mm256_div_ps(x, y); }
  static Floats fused(Floats x, Floats y, Floats z) { return _mm256_fmadd_ps(x, y, z); }
  static Floats fused_off(Floats x, Floats y, Floats z) { return _mm256_fnmadd_ps(x, y, z); }
  static Floats least(Floats x, Floats y) { return _mm256_min_ps(x, y); }
  static Floats largest(Floats x, Floats y) { return _mm256_max_ps(x, y); }
  static Floats magnitude(Floats x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
  static Floats rounded(Floats x) {
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Integers nearest(Floats x) { return _mm256_cvtps_epi32(x); }
  static bool any_at_least(Floats x, Floats y) {
    return _mm256_movemask_ps(_mm256_cmp_ps(x, y, _CMP_GE_OQ)) != 0;
  }
  static Integers narrow(Integers x, Integers y) { return _mm256_packs_epi32(x, y); }
  static Integers narrow_unsigned(Integers x, Integers y) { return _mm256_packus_epi16(x, y); }
  static Integers subtract_saturating(Integers x, Integers y) { return _mm256_subs_epi16(x, y); }
  static Integers least_bytes(Integers x, Integers y) { return _mm256_min_epu8(x, y); }
  // Stores the bytes of packed numbers in their order.
  static void store(std::uint8_t* to, Integers bytes) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(bytes, order));
  }

  // Whether a number was NaN.
  struct Nans {
    __m256 any = _mm256_setzero_ps();
    void add(Floats x, Floats y) { any = _mm256_or_ps(any, _mm256_cmp_ps(x, y, _CMP_UNORD_Q)); }
    bool exist() const { return _mm256_movemask_ps(any) != 0; }
  };
};
#endif

// Whether indices plus `lowest` fit 16 bits: then instructions that pack numbers clamp them.
bool packs(const ThresholdMap& map) {
  constexpr float most = 32000;
  return map.lowest >= -most && map.lowest + static_cast<float>(map.index_count) <= most;
}

// A formula; `fused` divides by fused steps, which take the time of three multiplications.
template <ThresholdMap::Method method, bool fused = false>
class PackedQuantizer {
  using In = WholeRegisters;
  using Floats = In::Floats;
  using Integers = In::Integers;
  static constexpr int lanes = sizeof(Floats) / sizeof(float);

 public:
  static constexpr std::int64_t together = 4 * lanes;

  explicit PackedQuantizer(const ThresholdMap& map)
      : gain_(In::all(map.gain)),
        offset_(In::all(map.offset)),
        bottom_(In::all(map.lowest)),
        top_(In::all(fused ? map.thresholds[map.index_count - 1]
                           : map.lowest + static_cast<float>(map.index_count - 1))),
        limit_(In::all(map.limit)),
        reciprocal_(In::all(map.reciprocal)),
        lowest_(In::all(static_cast<std::int16_t>(map.lowest))),
        last_(In::all(static_cast<std::int8_t>(map.index_count - 1))) {}

  // Writes the indices of some numbers. Returns whether one may be wrong.
  [[gnu::always_inline]] bool write(const float* x, std::uint8_t* to) {
    Integers indices[4];
    Floats off = In::all(0.0f), before = off;
    repeat<4>([&](int i) __attribute__((always_inline)) {
      const Floats numbers = In::read(x + lanes * i);
      if (i % 2 == 0) before = numbers;
      else nans_.add(before, numbers);
      Floats y = bounded_above(numbers);
      if constexpr (method == ThresholdMap::Method::correct) {
        y = In::largest(y, bottom_);
        off = In::largest(off, In::magnitude(In::subtract(y, In::rounded(y))));
      }
      indices[i] = In::nearest(y);
    });
    // Numbers below the lowest one are packed to it.
    const auto two = [&](int i) __attribute__((always_inline)) {
      return In::subtract_saturating(In::narrow(indices[i], indices[i + 1]), lowest_);
    };
    In::store(to, In::least_bytes(In::narrow_unsigned(two(0), two(2)), last_));
    return method == ThresholdMap::Method::correct && In::any_at_least(off, limit_);
  }

  bool has_nan() const { return nans_.exist(); }

 private:
  // The formula, at most the number of the last index.
  [[gnu::always_inline]] Floats bounded_above(Floats x) const {
    if constexpr (fused) {
      const Floats bounded = In::least(x, top_), near = In::multiply(bounded, reciprocal_);
      const Floats rest = In::fused_off(near, gain_, bounded);
      return In::add(In::fused(rest, reciprocal_, near), offset_);
    } else if constexpr (method == ThresholdMap::Method::divide) {
      return In::least(In::add(In::divide(x, gain_), offset_), top_);
    } else {
      return In::least(In::add(In::multiply(x, gain_), offset_), top_);
    }
  }

  Floats gain_, offset_, bottom_, top_, limit_, reciprocal_;
  Integers lowest_, last_;
  In::Nans nans_;
};

// Returns whether a number is NaN. `correct_all(x, n, to)` corrects indices.
template <class Quantizer, class Correct>
bool compute_packed(const ThresholdMap& map, const float* x, std::int64_t n, std::uint8_t* to,
                    Correct&& correct_all) {
  constexpr std::int64_t together = Quantizer::together;
  Quantizer quantizer(map);
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
