// SPDX-License-Identifier: Apache-2.0
// Pieces after a function such as SiLU: the channels of a layer differ only in the scale and the
// offset of the argument. Both are estimated from the starts of the pieces, and so is the function,
// as cubic polynomials of 32 segments. No estimate is trusted: for each piece of each channel, the
// polynomials are bounded between its first and its last sum. How far they leave the interval of
// numbers that round to the index of the piece, and the rounding errors of float32, determine how
// close to a tie a result may be.
#include "curve.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "curve_estimate.hpp"

namespace anybit::lowbit {

namespace {

using Int = std::numeric_limits<std::int32_t>;

// Places of kernels: segment k has those that are at most 1/2 away from k. The last one is a line,
// without end.
constexpr double first_place = -0.45, tail_place = curve_segments - 1.5;

// Maps places of the estimate to those of kernels.
class Segments {
 public:
  explicit Segments(const CurveShape& curve)
      : curve_(curve), unit_((curve.tail() - curve.low()) / (tail_place - first_place)) {}

  double unit() const { return unit_; }
  double to_kernel(double place) const { return first_place + (place - curve_.low()) / unit_; }

  // The polynomial c0 + c1 u + c2 u^2 + c3 u^3 through the curve at four places of a segment.
  std::array<double, 4> coefficients(int segment) const {
    const double middle = curve_.low() + (segment - first_place) * unit_;
    if (segment == curve_segments - 1) return {curve_.at(middle), curve_.tail_slope() * unit_};
    constexpr double outer = 0.46193976625564337, inner = 0.19134171618254492;  // Chebyshev
    constexpr double nodes[] = {-outer, -inner, inner, outer};
    std::array<double, 4> c{};  // divided differences, then coefficients
    for (int i = 0; i < 4; ++i) c[i] = curve_.at(middle + unit_ * nodes[i]);
    for (int order = 1; order < 4; ++order)
      for (int i = 3; i >= order; --i) c[i] = (c[i] - c[i - 1]) / (nodes[i] - nodes[i - order]);
    for (int from = 2; from >= 0; --from)
      for (int i = from; i < 3; ++i) c[i] -= nodes[from] * c[i + 1];
    return c;
  }

 private:
  const CurveShape& curve_;
  double unit_ = 0;
};

// Bounds how far the curve of a channel leaves the numbers that round to the indices.
class Proof {
 public:
  explicit Proof(const Curve& curve) : curve_(curve) {
    for (int segment = 0; segment + 1 < curve_segments; ++segment)
      largest_ = std::max(largest_, std::abs(c(0, segment)) + std::abs(c(1, segment)) +
                                        std::abs(c(2, segment)) + std::abs(c(3, segment)));
  }

  // Returns the largest distance from an integer at which that is the index; -1 if there is none.
  float limit(const CurveChannel& channel, const CurvePanel& panel, std::size_t lane) {
    gain_ = panel.gains[lane], offset_ = panel.offsets[lane];
    low_ = panel.lows[lane], high_ = panel.highs[lane];
    scale_ = panel.scales[lane], zero_ = panel.zeros[lane];
    // The sum is rounded to float32, multiplied, and added to the offset; all may round.
    const double most = std::max(std::abs(low_), std::abs(high_));
    place_error_ = margin * half_ulp * (2 * (most + std::abs(offset_)) + most) + tiny;
    excess_ = 0;
    std::int64_t first = Int::min();
    int code = channel.first;
    for (const PieceChange& change : channel.changes) {
      add_piece(first, change.start - 1, code);
      first = change.start, code = change.after;
    }
    add_piece(first, Int::max(), code);
    const double limit = 0.5 - excess_ - value_error();
    // Values are converted to int32.
    return limit > 0 && largest_value() < 0x1p30 ? std::nextafter(static_cast<float>(limit), 0.0f)
                                                 : -1.0f;
  }

 private:
  static constexpr double half_ulp = 0x1p-24;
  // The bounds are computed in double: they are raised by more than its rounding errors.
  static constexpr double margin = 1.01, tiny = 1e-9;
  static constexpr int most_divisions = 12;

  double c(int i, int segment) const { return curve_.coefficients[i][segment]; }

  double largest_value() const {
    constexpr int tail = curve_segments - 1;
    const double last = std::abs(c(0, tail)) + std::abs(c(1, tail)) * std::max(1.0, high_ - tail);
    return std::abs(scale_) * std::max(largest_, last) + std::abs(zero_);
  }

  // Three steps of the polynomial, the scale and the zero may round.
  double value_error() const { return margin * 8 * half_ulp * largest_value() + tiny; }

  void add_piece(std::int64_t first, std::int64_t last, int code) {
    if (!(excess_ < 0.5)) return;
    const auto [from, to] = std::minmax({gain_ * static_cast<double>(first) + offset_,
                                         gain_ * static_cast<double>(last) + offset_});
    const double begin = std::clamp(from - place_error_, low_, high_),
                 end = std::clamp(to + place_error_, low_, high_);
    constexpr int tail = curve_segments - 1;
    const auto segment_of = [](double place) {
      return static_cast<int>(std::clamp(std::floor(place + 0.5), 0.0, double{tail}));
    };
    for (int segment = segment_of(begin - tiny); segment <= segment_of(end + tiny); ++segment) {
      const double least = segment == 0 ? begin : std::max(begin - segment, -0.5);
      const double most = segment == tail ? end - segment : std::min(end - segment, 0.5);
      if (least <= most) add_part(segment, least, most, code, 0);
    }
  }

  // A cubic polynomial between two places is between its Bernstein coefficients.
  void add_part(int segment, double from, double to, int code, int divisions) {
    const auto value = [&](double u) {
      return ((c(3, segment) * u + c(2, segment)) * u + c(1, segment)) * u + c(0, segment);
    };
    const auto third = [&](double u) {
      const double slope = (3 * c(3, segment) * u + 2 * c(2, segment)) * u + c(1, segment);
      return slope * (to - from) / 3;
    };
    const double ends[] = {value(from), value(to)};
    const double excess = std::max(excess_of(ends[0], code), excess_of(ends[1], code));
    const double all = std::max(
        {excess, excess_of(ends[0] + third(from), code), excess_of(ends[1] - third(to), code)});
    if (all > excess_ && all > excess && divisions < most_divisions) {
      const double middle = (from + to) / 2;
      add_part(segment, from, middle, code, divisions + 1);
      add_part(segment, middle, to, code, divisions + 1);
      return;
    }
    excess_ = std::max(excess_, all + tiny);
  }

  // Results beyond the first and the last byte are saturated.
  double excess_of(double value, int code) const {
    const double index = value * scale_ + zero_;
    const double below = code > 0 ? code - 0.5 - index : 0,
                 above = code < 255 ? index - (code + 0.5) : 0;
    return std::max({0.0, below, above});
  }

  const Curve& curve_;
  double largest_ = 0;
  double gain_ = 0, offset_ = 0, low_ = 0, high_ = 0, scale_ = 0, zero_ = 0;
  double place_error_ = 0, excess_ = 0;
};

// Results stay far from the limits of int32, and places from those of the integers of float32.
constexpr double most_value = 0x1p20;

// A channel with one change has its first index in the middle of the last segment, and the other
// one at the next place.
void set_step(CurvePanel& to, std::size_t lane, const PieceChange& change, const Curve& curve) {
  constexpr int tail = curve_segments - 1;
  const double constant = curve.coefficients[0][tail], slope = curve.coefficients[1][tail];
  const double scale = (change.after - change.before) / slope;
  if (!(std::abs(scale) < most_value)) return;
  to.gains[lane] = 1, to.offsets[lane] = static_cast<float>(tail + 1.0 - change.start);
  to.lows[lane] = tail, to.highs[lane] = tail + 1;
  to.scales[lane] = static_cast<float>(scale);
  to.zeros[lane] = static_cast<float>(change.before - scale * constant);
}

// Sets the constants of a channel except its limit.
void set_channel(CurvePanel& to, std::size_t lane, const CurveChannel& channel,
                 const Segments& segments, const Curve& curve, int zero) {
  to.zeros[lane] = static_cast<float>(channel.first);
  if (channel.changes.size() == 1) return set_step(to, lane, channel.changes.front(), curve);
  if (!channel.is_placed()) return;
  const std::vector<Crossing>& all = channel.crossings;
  const std::size_t last = all.size() - 1;
  const auto place = [&](double sum) { return segments.to_kernel(channel.place(sum)); };
  // Sums beyond the reach of a channel have its first and last index.
  const double low = place(all[0].sum - (all[1].sum - all[0].sum) / 2),
               high = place(all[last].sum + (all[last].sum - all[last - 1].sum) / 2);
  const double gain = (channel.falls ? -1 : 1) / (channel.gain * segments.unit());
  const auto is_small = [](double number) { return std::abs(number) < most_value; };
  if (!is_small(low) || !is_small(high) || !is_small(place(0)) || !is_small(gain)) return;
  to.gains[lane] = static_cast<float>(gain), to.offsets[lane] = static_cast<float>(place(0));
  to.lows[lane] = static_cast<float>(std::max(low, first_place));
  to.highs[lane] = static_cast<float>(std::max(high, first_place));
  to.scales[lane] = static_cast<float>(channel.scale), to.zeros[lane] = static_cast<float>(zero);
}

// Computes the constants of kernels. False if there is no curve that fits most channels.
bool make_curve(const CurveEstimate& estimate, Curve& curve) {
  const Segments segments(estimate.curve);
  for (int segment = 0; segment < curve_segments; ++segment) {
    const auto coefficients = segments.coefficients(segment);
    for (std::size_t i = 0; i < 4; ++i) {
      if (!(std::abs(coefficients[i]) < most_value)) return false;
      curve.coefficients[i][segment] = static_cast<float>(coefficients[i]);
    }
  }
  // At most one of this many results may need a search.
  constexpr double few_doubtful = 40;
  for (CurvePanel& panel : curve.panels) std::fill_n(panel.limits, panel_channels, 1.0f);
  Proof proof(curve);
  double doubtful = 0;
  for (std::size_t number = 0; number < estimate.channels.size(); ++number) {
    CurvePanel& panel = curve.panels[number / panel_channels];
    const std::size_t lane = number % panel_channels;
    const CurveChannel& channel = estimate.channels[number];
    set_channel(panel, lane, channel, segments, curve, estimate.zero);
    panel.limits[lane] = proof.limit(channel, panel, lane);
    doubtful += panel.limits[lane] < 0 ? 1 : 1 - 2 * static_cast<double>(panel.limits[lane]);
  }
  return doubtful * few_doubtful <= static_cast<double>(estimate.channels.size());
}

}  // namespace

void fit_curve(PackedEpilogue& epilogue, std::int64_t channels) {
  // With more channels, the estimate takes too much time and memory.
  constexpr std::int64_t most_channels = 2048;
  if (epilogue.kind != EpilogueKind::pieces || channels > most_channels) return;
  CurveEstimate estimate;
  Curve curve;
  curve.panels.resize(
      static_cast<std::size_t>(epilogue.thresholds.size() / most_pieces / panel_channels));
  if (!estimate.fit(epilogue, channels) || !make_curve(estimate, curve)) return;
  epilogue.curve = std::move(curve);
  epilogue.kind = EpilogueKind::curved_pieces;
}

}  // namespace anybit::lowbit
