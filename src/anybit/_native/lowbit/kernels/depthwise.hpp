// SPDX-License-Identifier: Apache-2.0
// Depthwise sums over a window. Segments are the taps of the window. Weights are 16-bit numbers in
// the order [32 channels][tap][32]: a product of u8 and s8 fits 16 bits.
#pragma once
#include <algorithm>

#include "_native/lowbit/product_kernels.hpp"
#include "_native/lowbit/unroll.hpp"
#include "lanes.hpp"

namespace {

constexpr int group_channels = 32;

#if defined(__AVX2__) && !defined(__AVX512BW__)
constexpr int most_pixels = 2;  // their sums stay in registers

// Interleaves the weights of two taps.
[[gnu::always_inline]] inline void read_pairs(const std::byte* one, const std::byte* other,
                                              __m256i (&pairs)[4]) {
  repeat<2>([&](int half) __attribute__((always_inline)) {
    const auto a = read<__m256i>(one + 32 * half), b = read<__m256i>(other + 32 * half);
    const __m256i low = _mm256_unpacklo_epi16(a, b), high = _mm256_unpackhi_epi16(a, b);
    pairs[2 * half] = _mm256_permute2x128_si256(low, high, 0x20);
    pairs[2 * half + 1] = _mm256_permute2x128_si256(low, high, 0x31);
  });
}

// Two taps at a time: one instruction adds two 16-bit products in 32 bits.
template <int pixels>
[[gnu::always_inline]] inline void depthwise_tile(const anybit::lowbit::SumBlock& at, int first,
                                                  int channel, const std::byte* weights) {
  alignas(32) static constexpr std::byte nothing[2 * group_channels] = {};
  __m256i sums[pixels][4];
  for (auto& of_pixel : sums)
    for (__m256i& sum : of_pixel) sum = _mm256_setzero_si256();
  for (int tap = 0; tap < at.segment_count; tap += 2) {
    const std::byte* const weight = weights + std::ptrdiff_t{tap} * 2 * group_channels;
    const bool is_last = tap + 1 == at.segment_count;
    const std::ptrdiff_t one = at.segments[tap], other = at.segments[is_last ? tap : tap + 1];
    __m256i pairs[4];
    read_pairs(weight, is_last ? nothing : weight + 2 * group_channels, pairs);
    repeat<pixels>([&](int p) __attribute__((always_inline)) {
      const std::byte* const window = at.pixels[first + p] + channel;
      repeat<2>([&](int half) __attribute__((always_inline)) {
        const auto a = read<__m128i>(window + one + 16 * half),
                   b = read<__m128i>(window + other + 16 * half);
        const __m256i low = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b)),
                      high = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
        __m256i(&both)[4] = sums[p];
        both[2 * half] = _mm256_add_epi32(both[2 * half], _mm256_madd_epi16(low, pairs[2 * half]));
        both[2 * half + 1] =
            _mm256_add_epi32(both[2 * half + 1], _mm256_madd_epi16(high, pairs[2 * half + 1]));
      });
    });
  }
  repeat<pixels>([&](int p) __attribute__((always_inline)) {
    std::memcpy(at.sums + (first + p) * at.stride + channel, sums[p], sizeof sums[p]);
  });
}
#else
constexpr int most_pixels = 4;

// Sums some taps in 16 bits.
template <int pixels>
[[gnu::always_inline]] inline void add_taps(const anybit::lowbit::SumBlock& at,
                                            const std::byte* const (&windows)[pixels], int start,
                                            int end, const std::byte* weights,
                                            Shorts (&narrow)[pixels]) {
  for (int tap = start; tap < end; ++tap) {
    const auto weight = read<Shorts>(weights + std::ptrdiff_t{tap} * 2 * group_channels);
    repeat<pixels>([&](int p) __attribute__((always_inline)) {
      narrow[p] = narrow[p] + widened_bytes(windows[p] + at.segments[tap]) * weight;
    });
  }
}

template <int pixels>
[[gnu::always_inline]] inline void depthwise_tile(const anybit::lowbit::SumBlock& at, int first,
                                                  int channel, const std::byte* weights) {
  const std::byte* windows[pixels];
  repeat<pixels>(
      [&](int p) __attribute__((always_inline)) { windows[p] = at.pixels[first + p] + channel; });
  std::int32_t* const target = at.sums + first * at.stride + channel;
  // Sums of small windows fit 16 bits.
  if (at.segment_count <= at.narrow_steps) {
    Shorts narrow[pixels] = {};
    add_taps(at, windows, 0, at.segment_count, weights, narrow);
    return repeat<pixels>([&](int p) __attribute__((always_inline)) {
      write_widened(target + p * at.stride, narrow[p]);
    });
  }
  Lanes sums[pixels][2] = {};
  for (int start = 0; start < at.segment_count; start += at.narrow_steps) {
    Shorts narrow[pixels] = {};
    add_taps(at, windows, start, std::min(start + at.narrow_steps, at.segment_count), weights,
             narrow);
    repeat<pixels>([&](int p) __attribute__((always_inline)) { add_widened(sums[p], narrow[p]); });
  }
  repeat<pixels>([&](int p) __attribute__((always_inline)) {
    write(target + p * at.stride, sums[p][0]);
    write(target + p * at.stride + lane_count, sums[p][1]);
  });
}
#endif

void depthwise(const anybit::lowbit::SumBlock& at) {
  for (int panel = 0; panel < at.panels; panel += 2) {
    const std::byte* const weights = at.weights + panel * at.panel;
    int pixel = 0;
    for (; pixel + most_pixels <= at.count; pixel += most_pixels)
      depthwise_tile<most_pixels>(at, pixel, panel * lane_count, weights);
    for (; pixel < at.count; ++pixel) depthwise_tile<1>(at, pixel, panel * lane_count, weights);
  }
}

}  // namespace
