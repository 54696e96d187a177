// SPDX-License-Identifier: Apache-2.0
// Bytes of pixels in another order, 16 at a time. Part of elements.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "elements.hpp"

#if defined(__SSSE3__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace anybit::lowbit {
namespace {

#if defined(__SSSE3__)
using PermutedBytes = __m128i;
PermutedBytes places_of(const BytePart& part, const std::byte* pixel) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(pixel + part.from));
  return _mm_shuffle_epi8(bytes, _mm_loadu_si128(reinterpret_cast<const __m128i*>(part.places)));
}
PermutedBytes merged(PermutedBytes a, PermutedBytes b) { return _mm_or_si128(a, b); }
#elif defined(__ARM_NEON)
using PermutedBytes = uint8x16_t;
PermutedBytes places_of(const BytePart& part, const std::byte* pixel) {
  const uint8x16_t bytes = vld1q_u8(reinterpret_cast<const std::uint8_t*>(pixel + part.from));
  return vqtbl1q_u8(bytes, vld1q_u8(part.places));
}
PermutedBytes merged(PermutedBytes a, PermutedBytes b) { return vorrq_u8(a, b); }
#else
struct PermutedBytes {
  std::uint8_t bytes[permuted_bytes];
};
PermutedBytes places_of(const BytePart& part, const std::byte* pixel) {
  PermutedBytes result = {};
  for (std::int64_t i = 0; i < permuted_bytes; ++i)
    if (part.places[i] < permuted_bytes)
      std::memcpy(result.bytes + i, pixel + part.from + part.places[i], 1);
  return result;
}
PermutedBytes merged(const PermutedBytes& a, const PermutedBytes& b) {
  PermutedBytes result = {};
  for (std::int64_t i = 0; i < permuted_bytes; ++i)
    result.bytes[i] = static_cast<std::uint8_t>(a.bytes[i] | b.bytes[i]);
  return result;
}
#endif

void permute(const BytePermutation& permutation, const std::byte* line, std::byte* to) {
  const BytePermutation at = permutation;
  for (std::int64_t i = 0; i < at.pixels; ++i, to += at.target_pixel) {
    const std::byte* const pixel = line + at.columns[i] * at.source_pixel;
    const BytePart* part = at.parts;
    for (std::int64_t block = 0; block < at.blocks; ++block) {
      const BytePart* const end = at.parts + at.ends[block];
      const std::int64_t place = part->to;
      PermutedBytes bytes = places_of(*part, pixel);
      while (++part != end) bytes = merged(bytes, places_of(*part, pixel));
      std::memcpy(to + place, &bytes, sizeof bytes);
    }
  }
}

}  // namespace
}  // namespace anybit::lowbit
