// SPDX-License-Identifier: Apache-2.0
// Functions of all channels of a pixel in float32: softmax and layer normalization. Operations and
// the order of sums are those of `anybit/compiler/program/reference.py`.
#pragma once

#include <algorithm>
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

// Writes exp(x - largest), and returns the sum.
[[gnu::always_inline]] inline float add_exponentials(const float* x, float largest,
                                                     std::int64_t channels, float* to) {
  Reals sums = broadcast(0.0f);
  for_each_block(channels, [&](std::int64_t c, int count) __attribute__((always_inline)) {
    // Lanes after the last channel are 0.
    constexpr float none = -std::numeric_limits<float>::infinity();
    Reals y = exp_of(read_some(x + c, count, none) - broadcast(largest));
    write_some(to + c, y, count);
    if (count < lane_count) y = read_some(to + c, count, 0.0f);
    sums = sums + y;
  });
  return add_lanes(sums);
}

[[gnu::always_inline]] inline void multiply_all(float* y, std::int64_t channels, float factor) {
  for_each_block(channels, [&](std::int64_t c, int count) __attribute__((always_inline)) {
    write_some(y + c, read_some(y + c, count, 0.0f) * broadcast(factor), count);
  });
}

// Takes some pixels together: each step of one waits for the step before, but not for other pixels.
void softmax(const float* x, std::int64_t pixels, std::int64_t channels, float* to) {
  constexpr std::int64_t most_together = 16, near_floats = 2048;
  const std::int64_t together =
      std::clamp<std::int64_t>(near_floats / std::max<std::int64_t>(channels, 1), 1, most_together);
  for (std::int64_t first = 0; first < pixels; first += together) {
    const std::int64_t count = std::min(together, pixels - first);
    float numbers[most_together];  // the largest ones, then factors
    for (std::int64_t i = 0; i < count; ++i)
      numbers[i] = largest_of(x + (first + i) * channels, channels);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t start = (first + i) * channels;
      numbers[i] = 1.0f / add_exponentials(x + start, numbers[i], channels, to + start);
    }
    for (std::int64_t i = 0; i < count; ++i)
      multiply_all(to + (first + i) * channels, channels, numbers[i]);
  }
}

// Channels of a pixel, multiplied by 2^-100 if their squares would overflow.
template <bool shrinks>
struct PixelChannels {
  const float* x;
  std::int64_t channels;
  float mean = 0;

  [[gnu::always_inline]] Reals read_first(std::int64_t c, int count, float otherwise) const {
    const Reals y = read_some(x + c, count, otherwise);
    return shrinks ? y * broadcast(0x1p-100f) : y;
  }
  [[gnu::always_inline]] void find_mean() {
    Reals sums = broadcast(0.0f);
    for_each_block(channels, [&](std::int64_t c, int count) __attribute__((always_inline)) {
      sums = sums + read_first(c, count, 0.0f);
    });
    mean = add_lanes(sums) / static_cast<float>(channels) + 0.0f;  // 0 has the sign +
  }
  [[gnu::always_inline]] float find_variance() const {
    Reals squares = broadcast(0.0f);
    for_each_block(channels, [&](std::int64_t c, int count) __attribute__((always_inline)) {
      const Reals deviation = read_first(c, count, 0.0f) - broadcast(mean);
      Reals square = deviation * deviation;
      // Lanes after the last channel are 0.
      if (count < lane_count) {
        float lanes[lane_count];
        write(lanes, square);
        square = read_some(lanes, count, 0.0f);
      }
      squares = squares + square;
    });
    return add_lanes(squares) / static_cast<float>(channels);
  }
  [[gnu::always_inline]] void normalize(const Normalization& at, float variance, float epsilon,
                                        float* to) const {
    const Reals scale = broadcast(1.0f / std::sqrt(variance + epsilon));
    for_each_block(channels, [&](std::int64_t c, int count) __attribute__((always_inline)) {
      const Reals deviation = read_first(c, count, 0.0f) - broadcast(mean);
      write_some(to + c,
                 deviation * scale * read_some(at.gains + c, count, 0.0f) +
                     read_some(at.offsets + c, count, 0.0f),
                 count);
    });
  }
};

void normalize(const Normalization& constants, const float* x, std::int64_t pixels,
               std::int64_t channels, float* to) {
  const Normalization at = constants;
  for (std::int64_t pixel = 0; pixel < pixels; ++pixel, x += channels, to += channels) {
    PixelChannels<false> plain{x, channels};
    plain.find_mean();
    const float variance = plain.find_variance();
    if (variance <= std::numeric_limits<float>::max()) {
      plain.normalize(at, variance, at.epsilon, to);
      continue;
    }
    PixelChannels<true> shrunk{x, channels};
    shrunk.find_mean();
    shrunk.normalize(at, shrunk.find_variance(), std::numeric_limits<float>::min(), to);
  }
}

}  // namespace
}  // namespace anybit::lowbit
