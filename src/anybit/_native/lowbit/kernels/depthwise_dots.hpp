// SPDX-License-Identifier: Apache-2.0
// Depthwise sums over a window by instructions that add four byte products: four taps at a time.
// Segments are the taps of the window, padded to a multiple of four; padding taps have weights of
// 0. Panels are taken together as `panels_of_taps` says. Their weights are bytes in the order [four
// taps][4][panel][4 channels][4]: that in which unpacking leaves the bytes of four taps.
#pragma once
#include <immintrin.h>

#include "_native/lowbit/lanes.hpp"
#include "_native/lowbit/product_kernels.hpp"
#include "_native/lowbit/unroll.hpp"

namespace {

using anybit::lowbit::panels_of_taps;
using anybit::lowbit::taps_together;

#if defined(__AVX512VNNI__)
constexpr int most_tap_panels = 4;
#else
constexpr int most_tap_panels = 2;
#endif

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

// Vectors of 16 channels of some panels, one panel per 128 bits.
#if defined(__AVX512VNNI__)
struct FourPanels {
  using Vector = __m512i;
  static constexpr int panels = 4, pixels = 2;
  static Vector low8(Vector a, Vector b) { return _mm512_unpacklo_epi8(a, b); }
  static Vector high8(Vector a, Vector b) { return _mm512_unpackhi_epi8(a, b); }
  static Vector low16(Vector a, Vector b) { return _mm512_unpacklo_epi16(a, b); }
  static Vector high16(Vector a, Vector b) { return _mm512_unpackhi_epi16(a, b); }
  static Vector dot(Vector sum, Vector u8, Vector s8) { return _mm512_dpbusd_epi32(sum, u8, s8); }
  // From [4 channels][panel] to [panel][4 channels].
  static void store(std::int32_t* at, const Vector (&sums)[4]) {
    const Vector a = _mm512_shuffle_i32x4(sums[0], sums[1], 0x44),
                 b = _mm512_shuffle_i32x4(sums[0], sums[1], 0xee),
                 c = _mm512_shuffle_i32x4(sums[2], sums[3], 0x44),
                 d = _mm512_shuffle_i32x4(sums[2], sums[3], 0xee);
    write(at, _mm512_shuffle_i32x4(a, c, 0x88));
    write(at + lane_count, _mm512_shuffle_i32x4(a, c, 0xdd));
    write(at + 2 * lane_count, _mm512_shuffle_i32x4(b, d, 0x88));
    write(at + 3 * lane_count, _mm512_shuffle_i32x4(b, d, 0xdd));
  }
};
#endif

struct TwoPanels {
  using Vector = __m256i;
  static constexpr int panels = 2, pixels = 2;
  static Vector low8(Vector a, Vector b) { return _mm256_unpacklo_epi8(a, b); }
  static Vector high8(Vector a, Vector b) { return _mm256_unpackhi_epi8(a, b); }
  static Vector low16(Vector a, Vector b) { return _mm256_unpacklo_epi16(a, b); }
  static Vector high16(Vector a, Vector b) { return _mm256_unpackhi_epi16(a, b); }
  static Vector dot(Vector sum, Vector u8, Vector s8) {
#if defined(__AVX512VNNI__)
    return _mm256_dpbusd_epi32(sum, u8, s8);
#else
    return _mm256_dpbusd_avx_epi32(sum, u8, s8);
#endif
  }
  static void store(std::int32_t* at, const Vector (&sums)[4]) {
    write(at, _mm256_permute2x128_si256(sums[0], sums[1], 0x20));
    write(at + 8, _mm256_permute2x128_si256(sums[2], sums[3], 0x20));
    write(at + lane_count, _mm256_permute2x128_si256(sums[0], sums[1], 0x31));
    write(at + lane_count + 8, _mm256_permute2x128_si256(sums[2], sums[3], 0x31));
  }
};

template <class Panels, int pixels>
[[gnu::always_inline]] inline void depthwise_dots_tile(const anybit::lowbit::SumBlock& at,
                                                       int first, int panel) {
  using Vector = typename Panels::Vector;
  const std::byte* windows[pixels];
  Vector sums[pixels][4] = {};
  repeat<pixels>([&](int p) __attribute__((always_inline)) {
    windows[p] = at.pixels[first + p] + panel * lane_count;
  });
  const std::byte* weights = at.weights + panel * at.panel;
  for (int tap = 0; tap < at.segment_count; tap += taps_together) {
    Vector own[4];
    repeat<4>([&](int i) __attribute__((always_inline)) {
      own[i] = read<Vector>(weights + i * static_cast<int>(sizeof(Vector)));
    });
    weights += sizeof own;
    repeat<pixels>([&](int p) __attribute__((always_inline)) {
      const auto bytes = [&](int i) __attribute__((always_inline)) {
        return read<Vector>(windows[p] + at.segments[tap + i]);
      };
      const Vector low01 = Panels::low8(bytes(0), bytes(1)),
                   high01 = Panels::high8(bytes(0), bytes(1)),
                   low23 = Panels::low8(bytes(2), bytes(3)),
                   high23 = Panels::high8(bytes(2), bytes(3));
      sums[p][0] = Panels::dot(sums[p][0], Panels::low16(low01, low23), own[0]);
      sums[p][1] = Panels::dot(sums[p][1], Panels::high16(low01, low23), own[1]);
      sums[p][2] = Panels::dot(sums[p][2], Panels::low16(high01, high23), own[2]);
      sums[p][3] = Panels::dot(sums[p][3], Panels::high16(high01, high23), own[3]);
    });
  }
  repeat<pixels>([&](int p) __attribute__((always_inline)) {
    Panels::store(at.sums + (first + p) * at.stride + panel * lane_count, sums[p]);
  });
}

template <class Panels>
[[gnu::always_inline]] inline void depthwise_dots_panels(const anybit::lowbit::SumBlock& at,
                                                         int panel) {
  int pixel = 0;
  for (; pixel + Panels::pixels <= at.count; pixel += Panels::pixels)
    depthwise_dots_tile<Panels, Panels::pixels>(at, pixel, panel);
  for (; pixel < at.count; ++pixel) depthwise_dots_tile<Panels, 1>(at, pixel, panel);
}

template <int pixels>
[[gnu::always_inline]] inline void depthwise_dots_of_one(const anybit::lowbit::SumBlock& at,
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
  for (int panel = 0; panel < at.panels;) {
    const int together = panels_of_taps(at.panels - panel, most_tap_panels);
#if defined(__AVX512VNNI__)
    if (together == FourPanels::panels) depthwise_dots_panels<FourPanels>(at, panel);
#endif
    if (together == TwoPanels::panels) depthwise_dots_panels<TwoPanels>(at, panel);
    if (together == 1) {
      constexpr int most = 4;
      int pixel = 0;
      for (; pixel + most <= at.count; pixel += most) depthwise_dots_of_one<most>(at, pixel, panel);
      for (; pixel < at.count; ++pixel) depthwise_dots_of_one<1>(at, pixel, panel);
    }
    panel += together;
  }
}

}  // namespace
