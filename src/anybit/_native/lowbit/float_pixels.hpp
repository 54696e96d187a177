// SPDX-License-Identifier: Apache-2.0
// Sums of the pixels of channels in float32, in the order of
// `anybit/compiler/program/reference.py`.
#pragma once

#include <cstdint>

#include "float_rows.hpp"

namespace anybit::lowbit {
namespace {

template <class Read>
[[gnu::always_inline]] inline void add_pixels_of(std::int64_t pixels, float (&lanes)[4][16],
                                                 Read&& read_pixel) {
  Reals sums[4];
  repeat<4>([&](int i) __attribute__((always_inline)) { sums[i] = read<Reals>(lanes[i]); });
  std::int64_t pixel = 0;
  for (; pixel + 4 <= pixels; pixel += 4)
    repeat<4>([&](int i)
                  __attribute__((always_inline)) { sums[i] = sums[i] + read_pixel(pixel + i); });
  repeat<3>([&](int i) __attribute__((always_inline)) {
    if (pixel + i < pixels) sums[i] = sums[i] + read_pixel(pixel + i);
  });
  repeat<4>([&](int i) __attribute__((always_inline)) { write(lanes[i], sums[i]); });
}

void add_pixels(const float* x, std::int64_t pixels, std::int64_t stride, int count,
                float (&lanes)[4][16]) {
  if (count == lane_count)
    return add_pixels_of(pixels, lanes, [&](std::int64_t pixel) __attribute__((always_inline)) {
      return read<Reals>(x + pixel * stride);
    });
  add_pixels_of(pixels, lanes, [&](std::int64_t pixel) __attribute__((always_inline)) {
    return read_some(x + pixel * stride, count, 0.0f);
  });
}

}  // namespace
}  // namespace anybit::lowbit
