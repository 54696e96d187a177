// SPDX-License-Identifier: Apache-2.0
// Thresholds as rint(sum * gain + offset), where that is the same for every sum there can be.
#include <algorithm>
#include <cmath>
#include <limits>

#include "product_state.hpp"

namespace anybit::lowbit {

namespace {

struct Line {
  double gain = 0, offset = 0;
  double room = 0;  // how far all thresholds are from the line that would miss one
};

// The thresholds of a channel, ascending, of x in [lowest, highest].
struct Stairs {
  std::vector<std::int64_t> thresholds;
  std::int64_t lowest = 0, highest = 0;

  // Of the lines with that gain, the one in the middle of those that are right, if any are:
  // y >= i + 1/2 at threshold i, and less below it.
  Line line(double gain) const {
    double least = -std::numeric_limits<double>::infinity(), most = -least;
    for (std::size_t i = 0; i < thresholds.size(); ++i) {
      const double step = static_cast<double>(i) + 0.5;
      const std::int64_t at = thresholds[i];
      if (at > lowest)
        most = std::min(most, step - gain * static_cast<double>(std::min(at - 1, highest)));
      if (at <= highest)
        least = std::max(least, step - gain * static_cast<double>(std::max(at, lowest)));
    }
    // A channel that is always at one end.
    if (std::isinf(most)) most = least + 1;
    if (std::isinf(least)) least = most - 1;
    return {gain, (least + most) / 2, most - least};
  }

  // Where both numbers are short, sums fall on ties, and only the line through these is right.
  Line short_line(const Line& near, int bits) const {
    int exponent = 0;
    const double fraction = std::frexp(near.gain, &exponent);
    const double gain = std::ldexp(std::nearbyint(std::ldexp(fraction, bits)), exponent - bits);
    Line line = this->line(gain);
    if (gain > 0) line.offset = std::nearbyint(line.offset / gain) * gain;
    return line;
  }

  // The room is a concave function of the gain.
  Line best_line() const {
    double low = 0, high = 2.0 * static_cast<double>(thresholds.size() + 1);
    // The best gain is near that of the thresholds between both ends, if they are several.
    const auto first = std::upper_bound(thresholds.begin(), thresholds.end(), lowest);
    const auto last = std::upper_bound(first, thresholds.end(), highest);
    if (last - first > 1 && *(last - 1) > *first) {
      const double usual =
          static_cast<double>(last - first - 1) / static_cast<double>(*(last - 1) - *first);
      low = usual / 2, high = std::min(high, usual * 2);
    }
    for (int i = 0; i < 60; ++i) {
      const double third = (high - low) / 3;
      if (line(low + third).room < line(high - third).room) low += third;
      else high -= third;
    }
    return line((low + high) / 2);
  }
};

// Both operations round to nearest and so never turn an order around: it is enough to look at both
// sides of each threshold. `negative`: sums are ~x.
bool is_right(const Stairs& stairs, float gain, float offset, bool negative) {
  const auto index = [&](std::int64_t x) {
    const float product = static_cast<float>(static_cast<std::int32_t>(negative ? ~x : x)) * gain;
    return std::nearbyint(product + offset);
  };
  for (std::size_t i = 0; i < stairs.thresholds.size(); ++i) {
    const auto step = static_cast<float>(i);
    const std::int64_t at = stairs.thresholds[i];
    if (at > stairs.lowest && index(std::min(at - 1, stairs.highest)) > step) return false;
    if (at <= stairs.highest && index(std::max(at, stairs.lowest)) < step + 1) return false;
  }
  return true;
}

}  // namespace

void requantize(PackedProduct::State& at, const Weights& weights) {
  constexpr std::int64_t fewest_levels = 6;
  if (at.settling != Settling::raw || !is_sum_of_products(at.scheme) ||
      at.target.levels < fewest_levels)
    return;
  Aligned<float> gains(at.padded), offsets(at.padded);
  const std::int64_t each = at.target.levels - 1;
  for (std::int64_t channel = 0; channel < at.target.channels; ++channel) {
    Stairs stairs;
    for (std::int64_t i = 0; i < each; ++i)
      stairs.thresholds.push_back(threshold_of(at.tail, channel, i, each));
    for (std::int64_t i = 0; i < weights.taps * weights.inner; ++i) {
      const std::int64_t most = weights.of(channel)[i] * (at.source.levels - 1);
      (most < 0 ? stairs.lowest : stairs.highest) += most;
    }
    const bool negative = at.scales[channel] != 0;
    if (negative) stairs = {stairs.thresholds, ~stairs.highest, ~stairs.lowest};
    const Line best = stairs.best_line();
    float gain = 0, offset = 0;
    const auto try_line = [&](const Line& line) {
      // ~x = -x - 1
      gain = static_cast<float>(negative ? -line.gain : line.gain);
      offset = static_cast<float>(negative ? line.offset - line.gain : line.offset);
      return is_right(stairs, gain, offset, negative);
    };
    bool right = try_line(best);
    for (int bits = 1; bits <= 8 && !right; ++bits) right = try_line(stairs.short_line(best, bits));
    if (!right) return;
    gains[channel] = gain;
    offsets[channel] = offset;
  }
  at.tail.kind = TailKind::affine;
  at.tail.gains = std::move(gains);
  at.tail.offsets = std::move(offsets);
  at.tail.thresholds = {};
  at.settling = Settling::bare;
}

}  // namespace anybit::lowbit
