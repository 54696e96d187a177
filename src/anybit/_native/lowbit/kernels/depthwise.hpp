// SPDX-License-Identifier: Apache-2.0
// Depthwise sums over a window. Segments are the taps of the window. Weights are 16-bit numbers in
// the order [32 channels][tap][32]: a product of u8 and s8 fits 16 bits.
#pragma once
#include <algorithm>

#include "_native/lowbit/lanes.hpp"
#include "_native/lowbit/product_kernels.hpp"
#include "_native/lowbit/unroll.hpp"

namespace {

constexpr int group_channels = 32;

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
