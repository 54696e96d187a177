// SPDX-License-Identifier: Apache-2.0
#include "statistics.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace anybit {
namespace {

constexpr std::uint32_t exponent = 0x7f800000;

// In lanes, because the compiler keeps the written order of comparisons; in enough lanes that it
// vectorizes the loop instead of unrolling it.
void widen(std::span<const float> values, std::size_t channel, const Extremes& extremes) {
  constexpr std::size_t lanes = 32;
  float low = values[0], high = low;
  std::size_t at = 0;
  if (values.size() >= lanes) {
    std::array<float, lanes> lows, highs;
    lows.fill(low), highs.fill(high);
    for (; at + lanes <= values.size(); at += lanes)
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        const float value = values[at + lane];
        lows[lane] = value < lows[lane] ? value : lows[lane];
        highs[lane] = highs[lane] < value ? value : highs[lane];
      }
    low = *std::ranges::min_element(lows), high = *std::ranges::max_element(highs);
  }
  for (; at < values.size(); ++at)
    low = std::min(low, values[at]), high = std::max(high, values[at]);
  extremes.add(channel, low, high);
}

// Rows with one value per channel.
void widen_by_rows(const Values& values, const Extremes& extremes) {
  float* __restrict const lows = extremes.lows.data();
  float* __restrict const highs = extremes.highs.data();
  for (std::size_t start = 0; start < values.all.size(); start += values.channels) {
    const float* const row = values.all.data() + start;
    for (std::size_t i = 0; i < values.channels; ++i) {
      lows[i] = row[i] < lows[i] ? row[i] : lows[i];
      highs[i] = highs[i] < row[i] ? row[i] : highs[i];
    }
  }
}

// Pairwise summation.
template <class Term>
double in_pairs(const Term& term, std::size_t start, std::size_t size) {
  constexpr std::size_t lanes = 8, longest = 128;
  if (size > longest) {
    const std::size_t half = size / 2 / lanes * lanes;
    return in_pairs(term, start, half) + in_pairs(term, start + half, size - half);
  }
  double sum = 0;
  std::size_t at = 0;
  if (size >= lanes) {
    std::array<double, lanes> sums{};
    for (; at + lanes <= size; at += lanes)
      for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += term(start + at + lane);
    sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  }
  for (; at < size; ++at) sum += term(start + at);
  return sum;
}

}  // namespace

// Zeros of both signs are equal; which one stays would depend on the order.
void Extremes::add(std::size_t channel, float low, float high) const {
  lows[channel] = std::min(lows[channel], low) + 0.0F;
  highs[channel] = std::max(highs[channel], high) + 0.0F;
}

// Infinity and NaN have all exponent bits set.
bool are_finite(std::span<const float> values) {
  std::uint32_t not_finite = 0;  // GCC does not vectorize a bool
  for (const float value : values)
    not_finite |= (std::bit_cast<std::uint32_t>(value) & exponent) == exponent ? 1U : 0U;
  return not_finite == 0;
}

void widen(const Values& values, const Extremes& extremes) {
  if (values.all.empty()) return;
  if (values.inner == 1) {
    widen_by_rows(values, extremes);
    for (std::size_t i = 0; i < values.channels; ++i)
      extremes.add(i, extremes.lows[i], extremes.highs[i]);
    return;
  }
  std::size_t channel = 0;
  for (std::size_t start = 0; start < values.all.size(); start += values.inner) {
    widen(values.all.subspan(start, values.inner), channel, extremes);
    channel = channel + 1 < values.channels ? channel + 1 : 0;
  }
}

// Four histograms: values in the same bin, such as zeros, then do not wait for each other.
void count(std::span<const float> values, std::span<std::int64_t> counts) {
  const auto bin = [&](std::size_t at) {
    return std::bit_cast<std::uint32_t>(values[at]) >> bin_shift;
  };
  std::size_t at = 0;
  for (; at + 4 <= values.size(); at += 4) {
    const std::uint32_t a = bin(at), b = bin(at + 1), c = bin(at + 2), d = bin(at + 3);
    if (((a ^ b) | (a ^ c) | (a ^ d)) == 0) {
      counts[a] += 4;
    } else {
      ++counts[a], ++counts[b], ++counts[c], ++counts[d];
    }
  }
  for (; at < values.size(); ++at) ++counts[bin(at)];
}

double squared_difference(std::span<const float> a, std::span<const float> b) {
  const auto square = [&](std::size_t at) {
    const double difference = a[at] - b[at];
    return difference * difference;
  };
  return in_pairs(square, 0, a.size());
}

}  // namespace anybit
