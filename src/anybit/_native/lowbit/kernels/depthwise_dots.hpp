// SPDX-License-Identifier: Apache-2.0
// Depthwise sums over a window by instructions that add four byte products: four taps at a time.
// Weights are bytes in the order [16 channels][four taps][16][4]. Segments are the taps of the
// window, padded to a multiple of four; padding taps have weights of 0.
#pragma once
#include <immintrin.h>

#include "_native/lowbit/lanes.hpp"
#include "_native/lowbit/product_kernels.hpp"
#include "_native/lowbit/unroll.hpp"

namespace {

using anybit::lowbit::taps_together;

// sum[c] += the products of channel c at the four taps.
#if defined(__AVX512VNNI__)
[[gnu::always_inline]] inline Lanes with_taps(const Lanes& sum, const std::byte* window,
                                              const std::ptrdiff_t* taps, const Lanes& weights) {
  const auto tap = [&](int i)
                       __attribute__((always_inline)) { return read<__m128i>(window + taps[i]); };
  __m512i bytes = _mm512_castsi128_si512(tap(0));
  bytes = _mm512_mask_broadcast_i32x4(bytes, 0x00f0, tap(1));
  bytes = _mm512_mask_broadcast_i32x4(bytes, 0x0f00, tap(2));
  bytes = _mm512_mask_broadcast_i32x4(bytes, 0xf000, tap(3));
  // From [tap][channel] to [channel][tap]: four channels of all taps, then byte by byte.
  const __m512i words = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m512i within =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
  bytes = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(words, bytes), within);
  return {
      IntRegister(_mm512_dpbusd_epi32(__m512i(sum.parts[0]), bytes, __m512i(weights.parts[0])))};
}
#else
[[gnu::always_inline]] inline Lanes with_taps(const Lanes& sum, const std::byte* window,
                                              const std::ptrdiff_t* taps, const Lanes& weights) {
  const auto tap = [&](int i)
                       __attribute__((always_inline)) { return read<__m128i>(window + taps[i]); };
  const __m128i low01 = _mm_unpacklo_epi8(tap(0), tap(1)),
                high01 = _mm_unpackhi_epi8(tap(0), tap(1)),
                low23 = _mm_unpacklo_epi8(tap(2), tap(3)),
                high23 = _mm_unpackhi_epi8(tap(2), tap(3));
  const __m256i bytes[2] = {
      _mm256_set_m128i(_mm_unpackhi_epi16(low01, low23), _mm_unpacklo_epi16(low01, low23)),
      _mm256_set_m128i(_mm_unpackhi_epi16(high01, high23), _mm_unpacklo_epi16(high01, high23))};
  return map_registers<Lanes>([&](int i) __attribute__((always_inline)) {
    return IntRegister(
        _mm256_dpbusd_avx_epi32(__m256i(sum.parts[i]), bytes[i], __m256i(weights.parts[i])));
  });
}
#endif

template <int pixels>
[[gnu::always_inline]] inline void depthwise_dots_tile(const anybit::lowbit::SumBlock& at,
                                                       int first, int panel) {
  const std::byte* windows[pixels];
  Lanes sums[pixels] = {};
  repeat<pixels>([&](int p) __attribute__((always_inline)) {
    windows[p] = at.pixels[first + p] + panel * lane_count;
  });
  const std::byte* weights = at.weights + panel * at.panel;
  for (int tap = 0; tap < at.segment_count; tap += taps_together, weights += sizeof(Lanes)) {
    const auto weight = read<Lanes>(weights);
    repeat<pixels>([&](int p) __attribute__((always_inline)) {
      sums[p] = with_taps(sums[p], windows[p], at.segments + tap, weight);
    });
  }
  repeat<pixels>([&](int p) __attribute__((always_inline)) {
    write(at.sums + (first + p) * at.stride + panel * lane_count, sums[p]);
  });
}

void depthwise_dots(const anybit::lowbit::SumBlock& at) {
  constexpr int most = 4;
  for (int panel = 0; panel < at.panels; ++panel) {
    int pixel = 0;
    for (; pixel + most <= at.count; pixel += most) depthwise_dots_tile<most>(at, pixel, panel);
    for (; pixel < at.count; ++pixel) depthwise_dots_tile<1>(at, pixel, panel);
  }
}

}  // namespace
