// SPDX-License-Identifier: Apache-2.0
// Depthwise sums over a window, two taps at a time. Segments are the taps of the window, padded to
// an even number; a padding tap has weights of 0. See pack_tap_pairs for the order of weights.
#pragma once
#include <immintrin.h>

#include <algorithm>

#include "_native/lowbit/lanes.hpp"
#include "_native/lowbit/product_kernels.hpp"
#include "_native/lowbit/unroll.hpp"

namespace {

// Instructions interleave the halves of registers separately. 32 channels in 16 bits are two
// registers: channels 0-7 and 16-23, then 8-15 and 24-31. In 32 bits they are four: 0-3 and 16-19,
// then 4-7 and 20-23, and so on.

// Bytes of 32 channels at two taps, interleaved.
struct TapPair {
  __m256i low, high;
  [[gnu::always_inline]] TapPair(const std::byte* window, const std::ptrdiff_t* taps) {
    const auto a = read<__m256i>(window + taps[0]), b = read<__m256i>(window + taps[1]);
    low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
  }
};

// Adds products in 16 bits, of weights in bytes, and widens their sums after `narrow_steps` pairs.
struct ShortTaps {
  static constexpr int most_pixels = 4, registers = 2;

  [[gnu::always_inline]] static void add(__m256i (&sums)[registers], const TapPair& bytes,
                                         const std::byte* weights) {
    const auto add_to = [&](int i, __m256i pair) __attribute__((always_inline)) {
      __m256i next =
          _mm256_add_epi16(sums[i], _mm256_maddubs_epi16(pair, read<__m256i>(weights + 32 * i)));
      // GCC 12 would spill the sums.
      asm volatile("" : "+x"(next));
      sums[i] = next;
    };
    add_to(0, bytes.low), add_to(1, bytes.high);
  }

  [[gnu::always_inline]] static void widen(const __m256i (&sums)[registers], __m256i (&wide)[4]) {
    repeat<4>([&](int i) __attribute__((always_inline)) {
      wide[i] = _mm256_cvtepi16_epi32(i < 2 ? _mm256_castsi256_si128(sums[i % 2])
                                            : _mm256_extracti128_si256(sums[i % 2], 1));
    });
  }

  // Stores the low 16 bits, which are exact after any number of pairs.
  [[gnu::always_inline]] static void store_shorts(const __m256i (&sums)[registers],
                                                  std::int16_t* to) {
    write(to, _mm256_permute2x128_si256(sums[0], sums[1], 0x20));
    write(to + 16, _mm256_permute2x128_si256(sums[0], sums[1], 0x31));
  }
};

// Adds products in 32 bits, of weights in 16 bits.
struct WideTaps {
  static constexpr int most_pixels = 2, registers = 4;

  [[gnu::always_inline]] static void add(__m256i (&sums)[registers], const TapPair& bytes,
                                         const std::byte* weights) {
    const __m256i zero = _mm256_setzero_si256();
    const auto add_to = [&](int i, __m256i pair) __attribute__((always_inline)) {
      sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pair, read<__m256i>(weights + 32 * i)));
    };
    add_to(0, _mm256_unpacklo_epi8(bytes.low, zero));
    add_to(1, _mm256_unpackhi_epi8(bytes.low, zero));
    add_to(2, _mm256_unpacklo_epi8(bytes.high, zero));
    add_to(3, _mm256_unpackhi_epi8(bytes.high, zero));
  }

  [[gnu::always_inline]] static void widen(const __m256i (&sums)[registers], __m256i (&wide)[4]) {
    repeat<2>([&](int i) __attribute__((always_inline)) {
      wide[i] = _mm256_permute2x128_si256(sums[2 * i], sums[2 * i + 1], 0x20);
      wide[i + 2] = _mm256_permute2x128_si256(sums[2 * i], sums[2 * i + 1], 0x31);
    });
  }
};

// Computes the sums of pairs [start, end), on top of those that are stored if `start` is not 0.
template <class Taps, class Sum, int pixels>
[[gnu::always_inline]] inline void add_pairs(const anybit::lowbit::SumBlock& at, int first,
                                             int channel, const std::byte* weights, int start,
                                             int end) {
  const std::byte* windows[pixels];
  repeat<pixels>(
      [&](int p) __attribute__((always_inline)) { windows[p] = at.pixels[first + p] + channel; });
  __m256i sums[pixels][Taps::registers] = {};
  for (int pair = start; pair < end; ++pair) {
    const std::byte* const own = weights + std::ptrdiff_t{pair} * Taps::registers * 32;
    repeat<pixels>([&](int p) __attribute__((always_inline)) {
      Taps::add(sums[p], TapPair(windows[p], at.segments + 2 * pair), own);
    });
  }
  repeat<pixels>([&](int p) __attribute__((always_inline)) {
    if constexpr (sizeof(Sum) == 2)
      return Taps::store_shorts(sums[p], at.shorts + (first + p) * at.stride + channel);
    __m256i wide[4];
    Taps::widen(sums[p], wide);
    std::int32_t* const to = at.sums + (first + p) * at.stride + channel;
    repeat<4>([&](int i) __attribute__((always_inline)) {
      if (start > 0) wide[i] = _mm256_add_epi32(wide[i], read<__m256i>(to + 8 * i));
      write(to + 8 * i, wide[i]);
    });
  });
}

template <class Taps, class Sum = std::int32_t>
void depthwise_pairs(const anybit::lowbit::SumBlock& at) {
  const int pairs = at.segment_count / 2, most = sizeof(Sum) == 2 ? pairs : at.narrow_steps;
  for (int panel = 0; panel < at.panels; panel += 2) {
    const std::byte* const weights = at.weights + panel * at.panel;
    for (int start = 0; start < pairs; start += most) {
      const int end = std::min(start + most, pairs), channel = panel * lane_count;
      int pixel = 0;
      for (; pixel + Taps::most_pixels <= at.count; pixel += Taps::most_pixels)
        add_pairs<Taps, Sum, Taps::most_pixels>(at, pixel, channel, weights, start, end);
      for (; pixel < at.count; ++pixel)
        add_pairs<Taps, Sum, 1>(at, pixel, channel, weights, start, end);
    }
  }
}

}  // namespace
