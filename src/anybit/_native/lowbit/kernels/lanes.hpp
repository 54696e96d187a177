// SPDX-License-Identifier: Apache-2.0
// The 16 channels of a panel at once, in the vector extensions of GCC and Clang; instructions of a
// set only where those fall short.
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

namespace {

using Lanes [[gnu::vector_size(64)]] = std::int32_t;
using Reals [[gnu::vector_size(64)]] = float;
using ByteLanes [[gnu::vector_size(16)]] = std::uint8_t;
using SignedBytes [[gnu::vector_size(16)]] = std::int8_t;
constexpr int lane_count = 16;

template <class Vector>
[[gnu::always_inline]] inline Vector read(const void* at) {
  Vector vector;
  std::memcpy(&vector, at, sizeof vector);
  return vector;
}

template <class Vector>
[[gnu::always_inline]] inline void write(void* at, const Vector& vector) {
  std::memcpy(at, &vector, sizeof vector);
}

// One bit per lane: a >= b.
[[gnu::always_inline]] inline std::uint32_t reached(const Lanes& a, const Lanes& b) {
#if defined(__AVX512F__)
  return _mm512_cmpge_epi32_mask(read<__m512i>(&a), read<__m512i>(&b));
#elif defined(__SSE4_1__)
  std::uint32_t less = 0;
  for (int i = 0; i < 4; ++i) {
    const __m128i each = _mm_cmpgt_epi32(read<__m128i>(reinterpret_cast<const char*>(&b) + 16 * i),
                                         read<__m128i>(reinterpret_cast<const char*>(&a) + 16 * i));
    less |= static_cast<std::uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(each))) << 4 * i;
  }
  return less ^ 0xffff;
#else
  std::uint32_t bits = 0;
  for (int i = 0; i < lane_count; ++i) bits |= static_cast<std::uint32_t>(a[i] >= b[i]) << i;
  return bits;
#endif
}

// count + 1 where a >= b
[[gnu::always_inline]] inline Lanes counted(const Lanes& count, const Lanes& a, const Lanes& b) {
#if defined(__AVX512F__)
  const auto old = read<__m512i>(&count);
  const __m512i more =
      _mm512_mask_add_epi32(old, static_cast<__mmask16>(reached(a, b)), old, _mm512_set1_epi32(1));
  return read<Lanes>(&more);
#else
  return count - (a >= b);
#endif
}

// Lanes of 0..255 as bytes.
[[gnu::always_inline]] inline ByteLanes narrowed(const Lanes& lanes) {
#if defined(__AVX512F__)
  const __m128i bytes = _mm512_cvtepi32_epi8(read<__m512i>(&lanes));
  return read<ByteLanes>(&bytes);
#elif defined(__SSE4_1__)
  const auto quarter = [&](int i) __attribute__((always_inline)) {
    return read<__m128i>(reinterpret_cast<const char*>(&lanes) + 16 * i);
  };
  const __m128i bytes = _mm_packus_epi16(_mm_packs_epi32(quarter(0), quarter(1)),
                                         _mm_packs_epi32(quarter(2), quarter(3)));
  return read<ByteLanes>(&bytes);
#else
  return __builtin_convertvector(lanes, ByteLanes);
#endif
}

}  // namespace
