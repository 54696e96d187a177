// SPDX-License-Identifier: Apache-2.0
#include "elements.hpp"

#include <cstring>

#include "_native/isa/levels.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Compiled once per level: what is called here is local or forced inline.
namespace anybit::lowbit {
namespace {

// Elements that are worked on together.
constexpr std::int64_t batch = 256;

bool has_nan(const float* x, std::int64_t n) {
  std::int32_t nans = 0;
  for (std::int64_t i = 0; i < n; ++i) nans |= static_cast<std::int32_t>(x[i] != x[i]);
  return nans != 0;
}

void count(const Levels& levels, const float* x, std::int64_t n, std::uint8_t* to) {
  for (std::int64_t done = 0; done < n; done += batch) {
    const std::int64_t here = n - done < batch ? n - done : batch;
    std::int32_t sums[batch] = {};
    for (int k = 1; k < levels.levels; ++k) {
      const float threshold = levels.thresholds[k];
      for (std::int64_t i = 0; i < here; ++i) sums[i] += x[done + i] >= threshold ? 1 : 0;
    }
    for (std::int64_t i = 0; i < here; ++i) to[done + i] = static_cast<std::uint8_t>(sums[i]);
  }
}

// Adding this and taking it away again rounds to an integer, half to even.
constexpr float rounder = 12582912.0f;

struct Guess {
  explicit Guess(const Levels& levels)
      : gain(levels.gain),
        offset(levels.offset),
        lowest(levels.lowest),
        highest(levels.lowest + static_cast<float>(levels.levels - 1)) {}

  std::int32_t operator()(float x) const {
    float y = x * gain + offset;
    y = y > lowest ? y : lowest;  // NaN becomes the lowest
    y = y < highest ? y : highest;
    return static_cast<std::int32_t>(((y + rounder) - rounder) - lowest);
  }

  float gain, offset, lowest, highest;
};

void guess(const Levels& levels, const float* x, std::int64_t n, std::uint8_t* to) {
  const Guess index(levels);
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<std::uint8_t>(index(x[i]));
}

void correct(const Levels& levels, const float* x, std::int64_t n, std::uint8_t* to) {
  const float* const thresholds = levels.thresholds;
  const Guess index(levels);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int32_t first = index(x[i]);
    const std::int32_t below = x[i] >= thresholds[first] ? 0 : 1;
    const std::int32_t above = x[i] >= thresholds[first + 1] ? 1 : 0;
    to[i] = static_cast<std::uint8_t>(first - below + above);
  }
}

void search(const Levels& levels, const float* x, std::int64_t n, std::uint8_t* to) {
  const float* const thresholds = levels.thresholds;
  int half = 1;
  while (half < levels.levels) half *= 2;
  half /= 2;
  for (std::int64_t i = 0; i < n; ++i) {
    std::int32_t index = 0;
    for (int step = half; step > 0; step /= 2) index += x[i] >= thresholds[index + step] ? step : 0;
    to[i] = static_cast<std::uint8_t>(index);
  }
}

bool indices(const Levels& levels, const float* x, std::int64_t n, std::uint8_t* to) {
  switch (levels.way) {
    case Levels::Way::count:
      count(levels, x, n, to);
      break;
    case Levels::Way::guess:
      guess(levels, x, n, to);
      break;
    case Levels::Way::correct:
      correct(levels, x, n, to);
      break;
    case Levels::Way::search:
      search(levels, x, n, to);
      break;
  }
  if (levels.falls) {
    const auto last = static_cast<std::uint8_t>(levels.levels - 1);
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<std::uint8_t>(last - to[i]);
  }
  return has_nan(x, n);
}

// The bits of 32 numbers or fewer, and whether one is NaN.
inline std::uint32_t compared(const float* x, std::int64_t n, float threshold, bool& nan) {
  std::uint32_t bits = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    bits |= static_cast<std::uint32_t>(x[i] >= threshold) << i;
    nan = nan || x[i] != x[i];
  }
  return bits;
}

bool compare(const float* x, std::int64_t n, float threshold, bool falls, std::byte* words) {
  const std::uint32_t flip = falls ? ~std::uint32_t{0} : 0;
  bool nan = false;
  std::int64_t i = 0;
#if defined(__AVX512F__)
  const __m512 limit = _mm512_set1_ps(threshold);
  __mmask16 nans = 0;
  for (; i + 32 <= n; i += 32, words += 4) {
    const __m512 low = _mm512_loadu_ps(x + i), high = _mm512_loadu_ps(x + i + 16);
    nans = static_cast<__mmask16>(nans | _mm512_cmp_ps_mask(low, high, _CMP_UNORD_Q));
    const std::uint32_t bits =
        (_mm512_cmp_ps_mask(low, limit, _CMP_GE_OQ) |
         static_cast<std::uint32_t>(_mm512_cmp_ps_mask(high, limit, _CMP_GE_OQ)) << 16) ^
        flip;
    std::memcpy(words, &bits, 4);
  }
  nan = nans != 0;
#elif defined(__AVX__)
  const __m256 limit = _mm256_set1_ps(threshold);
  __m256 nans = _mm256_setzero_ps();
  for (; i + 32 <= n; i += 32, words += 4) {
    std::uint32_t bits = 0;
    for (int part = 0; part < 4; ++part) {
      const __m256 eight = _mm256_loadu_ps(x + i + part * 8);
      nans = _mm256_or_ps(nans, _mm256_cmp_ps(eight, eight, _CMP_UNORD_Q));
      bits |=
          static_cast<std::uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(eight, limit, _CMP_GE_OQ)))
          << part * 8;
    }
    bits ^= flip;
    std::memcpy(words, &bits, 4);
  }
  nan = _mm256_movemask_ps(nans) != 0;
#elif defined(__SSE2__)
  const __m128 limit = _mm_set1_ps(threshold);
  __m128 nans = _mm_setzero_ps();
  for (; i + 32 <= n; i += 32, words += 4) {
    std::uint32_t bits = 0;
    for (int part = 0; part < 8; ++part) {
      const __m128 four = _mm_loadu_ps(x + i + part * 4);
      nans = _mm_or_ps(nans, _mm_cmpunord_ps(four, four));
      bits |= static_cast<std::uint32_t>(_mm_movemask_ps(_mm_cmpge_ps(four, limit))) << part * 4;
    }
    bits ^= flip;
    std::memcpy(words, &bits, 4);
  }
  nan = _mm_movemask_ps(nans) != 0;
#endif
  for (; i < n; i += 32, words += 4) {
    const std::int64_t here = n - i < 32 ? n - i : 32;
    const std::uint32_t all = here == 32 ? ~std::uint32_t{0} : (std::uint32_t{1} << here) - 1;
    const std::uint32_t bits = (compared(x + i, here, threshold, nan) ^ flip) & all;
    std::memcpy(words, &bits, 4);
  }
  return nan;
}

inline const std::uint8_t* as_bytes(const std::byte* at) {
  return reinterpret_cast<const std::uint8_t*>(at);
}
inline std::uint8_t* as_bytes(std::byte* at) { return reinterpret_cast<std::uint8_t*>(at); }

void largest(const std::byte* const* from, std::size_t count, std::int64_t n, std::byte* to) {
  std::uint8_t* const result = as_bytes(to);
  if (to != from[0]) std::memcpy(to, from[0], static_cast<std::size_t>(n));
  for (std::size_t k = 1; k < count; ++k) {
    const std::uint8_t* const other = as_bytes(from[k]);
    for (std::int64_t i = 0; i < n; ++i) result[i] = result[i] > other[i] ? result[i] : other[i];
  }
}

void either(const std::byte* const* from, std::size_t count, std::int64_t n, std::byte* to) {
  std::uint8_t* const result = as_bytes(to);
  if (to != from[0]) std::memcpy(to, from[0], static_cast<std::size_t>(n));
  for (std::size_t k = 1; k < count; ++k) {
    const std::uint8_t* const other = as_bytes(from[k]);
    for (std::int64_t i = 0; i < n; ++i) result[i] |= other[i];
  }
}

void largest_planes(const std::byte* const* from, std::size_t count, std::int64_t n,
                    std::byte* to) {
  constexpr std::uint64_t low_bits = 0xffffffffu;
  if (to != from[0]) std::memcpy(to, from[0], static_cast<std::size_t>(n));
  for (std::size_t k = 1; k < count; ++k) {
    for (std::int64_t i = 0; i < n; i += 8) {
      std::uint64_t a, b;
      std::memcpy(&a, to + i, 8);
      std::memcpy(&b, from[k] + i, 8);
      const std::uint64_t a_high = a >> 32, b_high = b >> 32;
      // A low bit counts unless the other number has the high bit and its own has not.
      const std::uint64_t low = (a & (a_high | ~b_high)) | (b & (b_high | ~a_high));
      const std::uint64_t result = (low & low_bits) | (a_high | b_high) << 32;
      std::memcpy(to + i, &result, 8);
    }
  }
}

void lookup(const std::uint8_t* table, const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = table[from[i]];
}

void values(const float* table, const std::uint8_t* from, std::int64_t n, float* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = table[from[i]];
}

void combine(const std::uint8_t* table, std::int32_t levels, const std::uint8_t* first,
             const std::uint8_t* second, std::int64_t n, std::uint8_t* to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = table[first[i] * levels + second[i]];
}

}  // namespace
}  // namespace anybit::lowbit

namespace anybit {

template <>
const lowbit::ElementLoops& compiled<lowbit::ElementLoops, Level::ANYBIT_ISA>() {
  using namespace lowbit;
  static constexpr ElementLoops loops{indices,        compare, largest, either,
                                      largest_planes, lookup,  values,  combine};
  return loops;
}

}  // namespace anybit
