// SPDX-License-Identifier: Apache-2.0
// Counts and extremes of values, and sums of squares: with no array between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace anybit {

// Bins of the float32 numbers: by the sign, the exponent and the first bits of the fraction, 64 per
// octave.
inline constexpr int bin_shift = 17;
inline constexpr std::size_t bins = std::size_t{1} << (32 - bin_shift);

// An array with one axis of channels, as [before, channels, behind].
struct Values {
  std::span<const float> all;
  std::size_t channels = 1, behind = 1;
};

// The least and the largest value of each channel; of zeros the positive.
struct Extremes {
  std::span<float> lows, highs;

  void add(std::size_t channel, float low, float high) const;
};

// What there was before the first value.
inline constexpr float none_above = std::numeric_limits<float>::infinity();

// Whether all values are finite numbers.
bool are_finite(std::span<const float> values);

// Widens the extremes by finite values.
void widen(const Values& values, const Extremes& extremes);

// Adds to the counts of all bins.
void count(std::span<const float> values, std::span<std::int64_t> counts);

// The sum of (a - b)^2, of a float32 difference each, in float64: in pairs of pairs from runs of at
// most 128 in eight lanes, an order that depends on nothing but how many there are.
double squared_difference(std::span<const float> a, std::span<const float> b);

}  // namespace anybit
