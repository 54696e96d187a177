// SPDX-License-Identifier: Apache-2.0
// Many thresholds that lie nearly on a line: which index a sum has is then seen from a product, but
// where that comes close to a threshold.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "product_state.hpp"

namespace anybit::lowbit {

namespace {

using Int = std::numeric_limits<std::int32_t>;

// What is known of one channel; thresholds before `first` and from `last` on are beyond the line.
struct Line {
  float gain = 0, offset = 0, limit = 0.5f;
  std::int64_t first = 0, last = 0;
};

// Thresholds farther from a line than this, in steps, leave too little that needs no search.
constexpr double most_off = 0.25;

float height(const Line& line, double sum) {
  const float product = static_cast<float>(sum) * line.gain;
  return product + line.offset;
}

// The line through thresholds first to last, and how far they lie from it at most. Index k begins
// at threshold k - 1, where the line should pass k - 1/2; it never falls, so that what is true
// before and at each threshold is true between them.
std::optional<Line> drawn(const std::int32_t* thresholds, std::int64_t first, std::int64_t last) {
  Line line;
  line.first = first, line.last = last;
  line.offset = static_cast<float>(first);
  if (first >= last) return line;
  const double start = thresholds[first], end = thresholds[last - 1];
  const double gain = last - first > 1 ? static_cast<double>(last - first - 1) / (end - start) : 1;
  if (!(gain > 0 && gain <= 1)) return std::nullopt;
  double least = Int::max(), most = Int::min();
  for (std::int64_t i = first; i < last; ++i) {
    const double rest = static_cast<double>(i) + 0.5 - gain * (thresholds[i] - 0.5);
    least = std::min(least, rest), most = std::max(most, rest);
  }
  line.gain = static_cast<float>(gain);
  line.offset = static_cast<float>((least + most) / 2);
  double off = 0;
  for (std::int64_t i = first; i < last; ++i) {
    const double edge = static_cast<double>(i) + 0.5, at = thresholds[i];
    off = std::max({off, edge - height(line, at), height(line, at - 1) - edge});
  }
  if (!(off < most_off)) return std::nullopt;
  line.limit = std::nextafter(static_cast<float>(0.5 - off), 0.0f);
  return line;
}

// Thresholds at the ends may be anywhere: sums that are never reached, or where a function bends.
std::optional<Line> line_of(const std::int32_t* thresholds, std::int64_t count) {
  std::int64_t first = 0, last = count;
  if (count > 1 && thresholds[0] == thresholds[count - 1]) {
    first = last = thresholds[0] > 0 ? 0 : count;
  } else if (count > 1) {
    while (thresholds[first + 1] == thresholds[0]) ++first;
    while (thresholds[last - 2] == thresholds[count - 1]) --last;
    first += first > 0 ? 1 : 0;
    last -= last < count ? 1 : 0;
  }
  for (const std::int64_t before : {0, 1})
    for (const std::int64_t behind : {0, 1})
      if (const auto line = drawn(thresholds, std::min(first + before, last),
                                  std::max(std::min(first + before, last), last - behind)))
        return line;
  return std::nullopt;
}

}  // namespace

void draw_lines(TailState& tail, std::int64_t channels, std::int64_t levels) {
  if (tail.kind != TailKind::many_thresholds) return;
  const std::int64_t padded = tail.thresholds.size() / 256;
  TailState lined;
  for (Aligned<float>* each :
       {&lined.gains, &lined.offsets, &lined.limits, &lined.bottoms, &lined.tops})
    *each = Aligned<float>(padded);
  lined.lows = Aligned<std::int32_t>(padded), lined.highs = Aligned<std::int32_t>(padded);
  std::int64_t without = 0;
  for (std::int64_t channel = 0; channel < padded; ++channel) {
    const std::int32_t* const thresholds = tail.thresholds.data() + channel * 256;
    const auto found = channel < channels ? line_of(thresholds, levels - 1) : Line{};
    const Line line = found.value_or(Line{});
    without += found ? 0 : 1;
    lined.gains[channel] = line.gain, lined.offsets[channel] = line.offset;
    lined.limits[channel] = found ? line.limit : -1.0f;
    lined.bottoms[channel] = static_cast<float>(line.first);
    lined.tops[channel] = static_cast<float>(line.last);
    lined.lows[channel] = line.first > 0 ? thresholds[line.first - 1] : Int::min();
    lined.highs[channel] = line.last < levels - 1 ? thresholds[line.last] : Int::max();
  }
  if (without * 8 > channels) return;
  lined.kind = TailKind::lines;
  lined.thresholds = std::move(tail.thresholds);
  tail = std::move(lined);
}

}  // namespace anybit::lowbit
