// SPDX-License-Identifier: Apache-2.0
// Histograms, extremes and sums of squares, without temporary arrays.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace anybit {

// Bins of float32 numbers: sign, exponent and leading bits of the fraction, 64 bins per octave.
inline constexpr int bin_shift = 17;
inline constexpr std::size_t bins = std::size_t{1} << (32 - bin_shift);

// An array with a channel axis, as [before, channels, behind].
struct Values {
  std::span<const float> all;
  std::size_t channels = 1, inner = 1;
};

// Minimum and maximum per channel; zeros are positive.
struct Extremes {
  std::span<float> lows, highs;

  void add(std::size_t channel, float low, float high) const;
};

// Values before the first update.
inline constexpr float none_above = std::numeric_limits<float>::infinity();

// Whether all values are finite.
bool are_finite(std::span<const float> values);

// Widens the extremes by finite values.
void widen(const Values& values, const Extremes& extremes);

// Adds values to the counts of the bins.
void count(std::span<const float> values, std::span<std::int64_t> counts);

// Sum of (a - b)^2 in float64, with differences in float32. Pairwise from runs of at most 128
// elements in eight lanes: the order depends only on the number of elements.
double squared_difference(std::span<const float> a, std::span<const float> b);

}  // namespace anybit
