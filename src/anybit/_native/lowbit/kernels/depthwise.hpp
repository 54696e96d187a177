// SPDX-License-Identifier: Apache-2.0
// Sums of single channels over a window. Segments are the taps of the window, weights lie as
// [32 channels][tap][32] numbers of 16 bits: a product of u8 and s8 fits those.
#pragma once
#include <algorithm>

#include "_native/lowbit/product_kernels.hpp"
#include "lanes.hpp"
#include "unroll.hpp"

namespace {

constexpr int group_channels = 32;

template <int pixels>
[[gnu::always_inline]] inline void depthwise_tile(const anybit::lowbit::SumBlock& at, int first,
                                                  int channel, const std::byte* weights) {
  const std::byte* windows[pixels];
  unroll<pixels>(
      [&](auto p) __attribute__((always_inline)) { windows[p] = at.pixels[first + p] + channel; });
  Lanes sums[pixels][2] = {};
  for (int start = 0; start < at.segment_count; start += at.narrow_steps) {
    const int end = std::min(start + at.narrow_steps, at.segment_count);
    Shorts narrow[pixels] = {};
    for (int tap = start; tap < end; ++tap) {
      const auto weight = read<Shorts>(weights + std::ptrdiff_t{tap} * 2 * group_channels);
      unroll<pixels>([&](auto p) __attribute__((always_inline)) {
        narrow[p] += widened_bytes(windows[p] + at.segments[tap]) * weight;
      });
    }
    unroll<pixels>([&](auto p) __attribute__((always_inline)) { add_widened(sums[p], narrow[p]); });
  }
  unroll<pixels>([&](auto p) __attribute__((always_inline)) {
    write(at.sums + (first + p) * at.stride + channel, sums[p]);
  });
}

void depthwise(const anybit::lowbit::SumBlock& at) {
  constexpr int most = 4;
  for (int panel = 0; panel < at.panels; panel += 2) {
    const std::byte* const weights = at.weights + panel * at.panel;
    int pixel = 0;
    for (; pixel + most <= at.count; pixel += most)
      depthwise_tile<most>(at, pixel, panel * lane_count, weights);
    for (; pixel < at.count; ++pixel) depthwise_tile<1>(at, pixel, panel * lane_count, weights);
  }
}

}  // namespace
