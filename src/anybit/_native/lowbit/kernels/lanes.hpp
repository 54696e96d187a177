// SPDX-License-Identifier: Apache-2.0
// Operations on the 16 channels of a panel, in the vector extensions of GCC and Clang; intrinsics
// only where compilers generate worse code.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

namespace {

using Lanes [[gnu::vector_size(64)]] = std::int32_t;
using Reals [[gnu::vector_size(64)]] = float;
using ByteLanes [[gnu::vector_size(16)]] = std::uint8_t;
using Shorts [[gnu::vector_size(64)]] = std::int16_t;
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

// Stores the first `count` lanes.
[[gnu::always_inline]] inline void write_some(float* at, const Reals& numbers, int count) {
#if defined(__AVX512F__)
  _mm512_mask_storeu_ps(at, static_cast<__mmask16>((1u << count) - 1), read<__m512>(&numbers));
#else
  if (count == lane_count) return write(at, numbers);
  std::memcpy(at, &numbers, static_cast<std::size_t>(count) * sizeof(float));
#endif
}

// Transposes 4 x 4 numbers: to[j][i] = from[i][j]. Strides of lines are in elements.
[[gnu::always_inline]] inline void transpose_four(const float* from, std::ptrdiff_t from_line,
                                                  float* to, std::ptrdiff_t to_line) {
#if defined(__SSE4_1__)
  __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + from_line),
         c = _mm_loadu_ps(from + 2 * from_line), d = _mm_loadu_ps(from + 3 * from_line);
  _MM_TRANSPOSE4_PS(a, b, c, d);
  _mm_storeu_ps(to, a), _mm_storeu_ps(to + to_line, b);
  _mm_storeu_ps(to + 2 * to_line, c), _mm_storeu_ps(to + 3 * to_line, d);
#else
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < 4; ++i) to[j * to_line + i] = from[i * from_line + j];
#endif
}

// 32 bytes, widened to 16 bits.
[[gnu::always_inline]] inline Shorts widened_bytes(const std::byte* at) {
#if defined(__AVX512BW__)
  const __m512i wide = _mm512_cvtepu8_epi16(read<__m256i>(at));
  return read<Shorts>(&wide);
#elif defined(__SSE4_1__)
  __m128i quarters[4];
  for (int i = 0; i < 4; ++i)
    quarters[i] = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + 8 * i)));
  return read<Shorts>(quarters);
#else
  Shorts wide;
  for (int i = 0; i < 32; ++i) wide[i] = static_cast<std::uint8_t>(at[i]);
  return wide;
#endif
}

// sums[i] += numbers[i], i < 32.
[[gnu::always_inline]] inline void add_widened(Lanes (&sums)[2], const Shorts& shorts) {
#if defined(__AVX512BW__)
  const auto all = read<__m512i>(&shorts);
  const __m512i low = _mm512_cvtepi16_epi32(_mm512_castsi512_si256(all)),
                high = _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(all, 1));
  sums[0] += read<Lanes>(&low);
  sums[1] += read<Lanes>(&high);
#elif defined(__SSE4_1__)
  __m128i quarters[8];
  for (int i = 0; i < 8; ++i)
    quarters[i] = _mm_cvtepi16_epi32(_mm_loadl_epi64(
        reinterpret_cast<const __m128i*>(reinterpret_cast<const char*>(&shorts) + 8 * i)));
  sums[0] += read<Lanes>(quarters);
  sums[1] += read<Lanes>(quarters + 4);
#else
  for (int i = 0; i < 32; ++i) sums[i / 16][i % 16] += shorts[i];
#endif
}

// Widens 32 numbers to 32 bits.
[[gnu::always_inline]] inline void write_widened(std::int32_t* at, const Shorts& shorts) {
#if defined(__AVX512BW__)
  const auto all = read<__m512i>(&shorts);
  _mm512_storeu_si512(at, _mm512_cvtepi16_epi32(_mm512_castsi512_si256(all)));
  _mm512_storeu_si512(at + 16, _mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(all, 1)));
#else
  Lanes sums[2] = {};
  add_widened(sums, shorts);
  write(at, sums);
#endif
}

// One bit per lane: a >= b.
[[gnu::always_inline]] inline std::uint32_t reached(const Lanes& a, const Lanes& b) {
#if defined(__AVX512F__)
  return _mm512_cmpge_epi32_mask(read<__m512i>(&a), read<__m512i>(&b));
#elif defined(__SSE4_1__)
  std::uint32_t less = 0;
  for (int i = 0; i < 4; ++i) {
    const __m128i lanes =
        _mm_cmpgt_epi32(read<__m128i>(reinterpret_cast<const char*>(&b) + 16 * i),
                        read<__m128i>(reinterpret_cast<const char*>(&a) + 16 * i));
    less |= static_cast<std::uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(lanes))) << 4 * i;
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

// Gathers numbers at indices, which are not negative.
[[gnu::always_inline]] inline Lanes gathered(const std::int32_t* from, const Lanes& places) {
  Lanes numbers;
#if defined(__AVX512F__)
  const __m512i all = _mm512_i32gather_epi32(read<__m512i>(&places), from, 4);
  numbers = read<Lanes>(&all);
#else
  for (int i = 0; i < lane_count; ++i) numbers[i] = from[places[i]];
#endif
  return numbers;
}

// Packs lanes of 0..255 to bytes.
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

// Packs four vectors, one after another.
[[gnu::always_inline]] inline void write_narrowed(void* at, const Lanes (&panels)[4]) {
#if defined(__AVX512BW__)
  const auto panel = [&](int i)
                         __attribute__((always_inline)) { return read<__m512i>(&panels[i]); };
  const __m512i quarters = _mm512_packus_epi16(_mm512_packs_epi32(panel(0), panel(1)),
                                               _mm512_packs_epi32(panel(2), panel(3)));
  // The pack instructions interleave 128-bit quarters: undo this.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  write(at, _mm512_permutexvar_epi32(order, quarters));
#else
  for (int i = 0; i < 4; ++i) write(static_cast<std::byte*>(at) + 16 * i, narrowed(panels[i]));
#endif
}

}  // namespace
