// SPDX-License-Identifier: Apache-2.0
// Quantization by few thresholds straight to packed bits. Part of elements.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "elements.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace anybit::lowbit {
namespace {

bool has_nan(const float* x, std::int64_t n) {
  std::int32_t nans = 0;
  for (std::int64_t i = 0; i < n; ++i) nans |= static_cast<std::int32_t>(x[i] != x[i]);
  return nans != 0;
}

// A vector register of the level, and comparisons that return a bit mask.
#if defined(__AVX512F__)
using Part = __m512;
Part part_at(const float* x) {
  Part numbers = _mm512_loadu_ps(x);
  asm("" : "+v"(numbers));  // load once: most loads cross a cache line
  return numbers;
}
Part part_of(float x) { return _mm512_set1_ps(x); }
std::uint32_t reached(Part x, Part limit) { return _mm512_cmp_ps_mask(x, limit, _CMP_GE_OQ); }
#elif defined(__AVX__)
using Part = __m256;
Part part_at(const float* x) { return _mm256_loadu_ps(x); }
Part part_of(float x) { return _mm256_set1_ps(x); }
std::uint32_t reached(Part x, Part limit) {
  return static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(x, limit, _CMP_GE_OQ)));
}
#elif defined(__SSE2__)
using Part = __m128;
Part part_at(const float* x) { return _mm_loadu_ps(x); }
Part part_of(float x) { return _mm_set1_ps(x); }
std::uint32_t reached(Part x, Part limit) {
  return static_cast<std::uint32_t>(_mm_movemask_ps(_mm_cmpge_ps(x, limit)));
}
#else
using Part = float;
Part part_at(const float* x) { return *x; }
Part part_of(float x) { return x; }
std::uint32_t reached(Part x, Part limit) { return x >= limit ? 1 : 0; }
#endif
#if defined(__AVX2__) && !defined(__AVX512F__)
#define ANYBIT_COMPARES_WORDS
// Numbers 4 p to 4 p + 3 of each half of 32.
Part quarters_at(const float* x, int p) {
  const __m128 first = _mm_loadu_ps(x + 4 * p), second = _mm_loadu_ps(x + 16 + 4 * p);
  return _mm256_insertf128_ps(_mm256_castps128_ps256(first), second, 1);
}
// One bit for each of 32 numbers. Packing within halves of registers keeps their order.
std::uint32_t word_reached(const Part (&quarters)[4], Part limit) {
  const auto reached = [&](int p) __attribute__((always_inline)) {
    return _mm256_castps_si256(_mm256_cmp_ps(quarters[p], limit, _CMP_GE_OQ));
  };
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(reached(0), reached(1)),
                                           _mm256_packs_epi32(reached(2), reached(3)));
  return static_cast<std::uint32_t>(_mm256_movemask_epi8(bytes));
}
#endif
constexpr int part_size = sizeof(Part) / sizeof(float), half = 16, parts = half / part_size;

void store(std::byte* to, std::uint32_t mask) {
  const auto low = static_cast<std::uint16_t>(mask);
  std::memcpy(to, &low, sizeof low);
}

// Compares words of 32 numbers with `count` thresholds, and writes bits, planes or nibbles. For a
// decreasing index the masks are inverted and the last threshold comes first, so that each mask is
// again a subset of the previous one.
template <int count, Coding coding, bool decreasing>
class ThresholdPacker {
  static constexpr int planes = coding == Coding::bits ? 1 : 2;

 public:
  explicit ThresholdPacker(const ThresholdMap& map) {
    for (int k = 0; k < count; ++k)
      limits_[k] = part_of(map.thresholds[decreasing ? count - k : k + 1]);
  }

  // Returns whether a number is NaN.
  bool write(const float* x, std::int64_t n, std::byte* to) {
    const float* const all = x;
    std::int64_t left = n;
#if defined(ANYBIT_COMPARES_WORDS)
    for (; left >= 2 * half; left -= 2 * half, x += 2 * half, to += 4 * planes) write_word(x, to);
#endif
    for (; left >= 4 * half; left -= 4 * half, x += 4 * half, to += 8 * planes) {
      write_half<0>(x, half, to), write_half<1>(x, half, to);
      write_half<2>(x, half, to), write_half<3>(x, half, to);
    }
    if (left > 0) write_some<0>(x, left, to), write_some<1>(x, left, to);
    if (left > 2 * half) write_some<2>(x, left, to), write_some<3>(x, left, to);
    return doubtful() && has_nan(all, n);
  }

 private:
  // Handles 16 numbers; the first `left` are valid. Separate sums shorten the dependency chain.
  template <int turn>
  void write_half(const float* x, std::int64_t left, std::byte* to) {
    std::uint32_t masks[count] = {};
    for (int p = 0; p < parts; ++p) {
      const Part numbers = part_at(x + turn * half + p * part_size);
      sums_[(turn * parts + p) % 4] += numbers;
      for (int k = 0; k < count; ++k) masks[k] |= reached(numbers, limits_[k]) << p * part_size;
    }
    const std::uint32_t there = (std::uint32_t{1} << left) - 1;
    for (std::uint32_t& mask : masks) mask = (decreasing ? ~mask : mask) & there;
    put<turn>(masks, to);
  }

#if defined(ANYBIT_COMPARES_WORDS)
  void write_word(const float* x, std::byte* to) {
    Part numbers[4];
    for (int p = 0; p < 4; ++p) {
      numbers[p] = quarters_at(x, p);
      sums_[p] += numbers[p];
    }
    std::uint32_t masks[count];
    for (int k = 0; k < count; ++k) {
      masks[k] = word_reached(numbers, limits_[k]);
      if (decreasing) masks[k] = ~masks[k];
    }
    const Words words = words_of(masks);
    store_word(to, words.first);
    if constexpr (planes == 2) store_word(to + 4, words.second);
  }
#endif

  struct Words {
    std::uint32_t first, second;
  };
  static Words words_of(const std::uint32_t (&masks)[count]) {
    std::uint32_t low = masks[0], high = count == 1 ? 0 : masks[1 % count];
    if constexpr (count >= 2) low ^= masks[1];
    if constexpr (count == 3) low ^= masks[2];
    if constexpr (coding == Coding::nibbles) mix_planes(low, high);
    return {low, high};
  }

  template <int turn>
  static void put(const std::uint32_t (&masks)[count], std::byte* to) {
    to += turn / 2 * planes * 4 + turn % 2 * 2;
    const Words words = words_of(masks);
    store(to, words.first);
    if constexpr (planes == 2) store(to + 4, words.second);
  }

  // Handles the end, where fewer numbers or none are left.
  template <int turn>
  void write_some(const float* x, std::int64_t left, std::byte* to) {
    if (left >= (turn + 1) * half) return write_half<turn>(x, half, to);
    left -= turn * half;
    if (left <= 0) return put<turn>({}, to);
    float few[4 * half] = {};
    std::memcpy(few + turn * half, x + turn * half, static_cast<std::size_t>(left) * sizeof(float));
    write_half<turn>(few, left, to);
  }

  // Whether a number may be NaN. Sums of infinities also raise this.
  bool doubtful() const {
    const Part sum = (sums_[0] + sums_[1]) + (sums_[2] + sums_[3]);
    return reached(sum, sum) != (std::uint32_t{1} << part_size) - 1;
  }

  Part limits_[count], sums_[4] = {};
};

template <int count, Coding coding>
bool packed(const ThresholdMap& map, const float* x, std::int64_t n, std::byte* to) {
  return map.decreasing ? ThresholdPacker<count, coding, true>(map).write(x, n, to)
                        : ThresholdPacker<count, coding, false>(map).write(x, n, to);
}

template <Coding coding>
bool two_bits(const ThresholdMap& map, const float* x, std::int64_t n, std::byte* to) {
  switch (map.index_count) {
    case 2:
      return packed<1, coding>(map, x, n, to);
    case 3:
      return packed<2, coding>(map, x, n, to);
    default:
      return packed<3, coding>(map, x, n, to);
  }
}

}  // namespace
}  // namespace anybit::lowbit
