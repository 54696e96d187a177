// SPDX-License-Identifier: Apache-2.0
// Sums of single channels over a window. Segments are the taps of the window, weights lie as
// [panel][tap][16] bytes.
#pragma once
#include "_native/lowbit/product_kernels.hpp"
#include "lanes.hpp"

namespace {

void depthwise(const anybit::lowbit::SumBlock& at) {
  for (int panel = 0; panel < at.panels; ++panel) {
    const std::byte* const weights = at.weights + panel * at.panel;
    for (int pixel = 0; pixel < at.count; ++pixel) {
      const std::byte* const window = at.pixels[pixel] + panel * lane_count;
      Lanes sum = {};
      for (int tap = 0; tap < at.segment_count; ++tap)
        sum += __builtin_convertvector(read<ByteLanes>(window + at.segments[tap]), Lanes) *
               __builtin_convertvector(read<SignedBytes>(weights + tap * lane_count), Lanes);
      write(at.sums + pixel * at.stride + panel * lane_count, sum);
    }
  }
}

}  // namespace
