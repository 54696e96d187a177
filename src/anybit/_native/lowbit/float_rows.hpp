// SPDX-License-Identifier: Apache-2.0
// Functions of all channels of a pixel in float32: softmax and layer normalization. Operations and
// the order of sums are those of `anybit/compiler/program/reference.py`.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "elements.hpp"
#include "exponential.hpp"

namespace anybit::lowbit {
namespace {

// Calls work(offset, count) for blocks of 16 channels; the last one may have fewer.
template <class Work>
[[gnu::always_inline]] inline void for_each_block(std::int64_t channels, Work&& work) {
  std::int64_t c = 0;
  for (; c + lane_count <= channels; c += lane_count) work(c, lane_count);
  if (c < channels) work(c, static_cast<int>(channels - c));
}

// Reads `count` numbers; the other lanes get `filler`.
[[gnu::always_inline]] inline Reals read_some(const float* at, int count, float filler) {
  if (count == lane_count) return read<Reals>(at);
  float lanes[lane_count];
  for (float& lane : lanes) lane = filler;
  std::memcpy(lanes, at, static_cast<std::size_t>(count) * sizeof(float));
  return read<Reals>(lanes);
}

// Joins lane i + half with lane i, for all halves.
template <class Join>
[[gnu::always_inline]] inline float reduce(Reals all, Join&& join) {
  for (int half = register_count / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) all.parts[i] = join(all.parts[i], all.parts[i + half]);
  constexpr int lanes = lane_count / register_count;
  float rest[lanes];
  write(rest, all.parts[0]);
  for (int half = lanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) rest[i] = join(rest[i], rest[i + half]);
  return rest[0];
}

[[gnu::always_inline]] inline float add_lanes(const Reals& sums) {
  return reduce(sums, [](auto a, auto b) __attribute__((always_inline)) { return a + b; });
}

[[gnu::always_inline]] inline float largest_of(const float* x, std::int64_t channels) {
  constexpr float none = -std::numeric_limits<float>::infinity();
  Reals most = broadcast(none);
  for_each_block(channels, [&](std::int64_t c, int count) __attribute__((always_inline)) {
    const Reals here = read_some(x + c, count, none);
    most = selected(here > most, here, most);
  });
  return reduce(most, [](auto a, auto b) __attribute__((always_inline)) { return a > b ? a : b; });
}

void softmax(const float* x, std::int64_t pixels, std::int64_t channels, float* to) {
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel, x += channels, to += channels) {
    const Reals largest = broadcast(largest_of(x, channels));
    Reals sums = broadcast(0.0f);
    for_each_block(channels, [&](std::int64_t c, int count) __attribute__((always_inline)) {
      // Lanes after the last channel are 0.
      constexpr float none = -std::numeric_limits<float>::infinity();
      Reals y = exp_of(read_some(x + c, count, none) - largest);
      write_some(to + c, y, count);
      if (count < lane_count) y = read_some(to + c, count, 0.0f);
      sums = sums + y;
    });
    const Reals factor = broadcast(1.0f / add_lanes(sums));
    for_each_block(channels, [&](std::int64_t c, int count) __attribute__((always_inline)) {
      write_some(to + c, read_some(to + c, count, 0.0f) * factor, count);
    });
  }
}

void normalize(const Normalization& constants, const float* x, std::int64_t pixels,
               std::int64_t channels, float* to) {
  const Normalization at = constants;
  const auto size = static_cast<float>(channels);
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel, x += channels, to += channels) {
    Reals sums = broadcast(0.0f);
    for_each_block(channels, [&](std::int64_t c, int count) __attribute__((always_inline)) {
      sums = sums + read_some(x + c, count, 0.0f);
    });
    const float mean = add_lanes(sums) / size + 0.0f;  // 0 has the sign +
    Reals squares = broadcast(0.0f);
    for_each_block(channels, [&](std::int64_t c, int count) __attribute__((always_inline)) {
      const Reals deviation = read_some(x + c, count, mean) - broadcast(mean);
      Reals square = deviation * deviation;
      // The mean may be infinite: lanes after the last channel are 0.
      if (count < lane_count) {
        float lanes[lane_count];
        write(lanes, square);
        square = read_some(lanes, count, 0.0f);
      }
      squares = squares + square;
    });
    const Reals scale = broadcast(1.0f / std::sqrt(add_lanes(squares) / size + at.epsilon));
    for_each_block(channels, [&](std::int64_t c, int count) __attribute__((always_inline)) {
      const Reals deviation = read_some(x + c, count, 0.0f) - broadcast(mean);
      write_some(to + c,
                 deviation * scale * read_some(at.gains + c, count, 0.0f) +
                     read_some(at.offsets + c, count, 0.0f),
                 count);
    });
  }
}

}  // namespace
}  // namespace anybit::lowbit
