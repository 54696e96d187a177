// SPDX-License-Identifier: Apache-2.0
#include "curve_estimate.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace anybit::lowbit {

namespace {

// Negates the sums.
void turn(CurveChannel& channel) {
  channel.falls = !channel.falls;
  std::ranges::reverse(channel.crossings);
  for (Crossing& at : channel.crossings)
    at = {-at.sum, at.tie < falling ? at.tie + falling : at.tie - falling};
}

constexpr double most_apart = 8;  // sums between indices that alternate

// Where a curve is flat, indices may alternate: leaves out crossings of a tie to and fro.
std::vector<Crossing> without_repetition(const std::vector<Crossing>& all) {
  std::vector<Crossing> result;
  for (const Crossing& at : all) {
    const bool returns = !result.empty() && result.back().tie % falling == at.tie % falling &&
                         at.sum - result.back().sum <= most_apart;
    if (returns) result.pop_back();
    else result.push_back(at);
  }
  return result;
}

CurveChannel channel_of(const PackedEpilogue& epilogue, std::int64_t number) {
  CurveChannel channel;
  channel.changes = changes_of(epilogue, number);
  channel.first = first_code(epilogue, number);
  std::int64_t ties = 0;
  for (const PieceChange& change : channel.changes) ties += std::abs(change.after - change.before);
  if (ties > most_ties) return channel;
  std::vector<Crossing> all;
  for (const PieceChange& change : channel.changes) {
    const double sum = static_cast<double>(change.start) - 0.5;
    for (int tie = change.before; tie < change.after; ++tie) all.push_back({sum, tie});
    for (int tie = change.before - 1; tie >= change.after; --tie)
      all.push_back({sum, tie + falling});
  }
  channel.crossings = without_repetition(all);
  return channel;
}

double value_of(int tie) { return tie % falling + 0.5; }

// Finds the scale of channels, and their gain and offset roughly, by the ties of one channel.
class Matcher {
 public:
  explicit Matcher(const CurveChannel& reference) {
    const std::vector<Crossing>& all = reference.crossings;
    if (all.size() < least_ties) return;
    const double low = all.front().sum, span = all.back().sum - low;
    if (!(span > 0)) return;
    for (const Crossing& at : all) known_[at.tie] = true, places_[at.tie] = (at.sum - low) / span;
    is_valid_ = true;
  }

  bool is_valid() const { return is_valid_; }

  // The scale of a channel, which is a power of two, and a line through its ties.
  struct Match {
    double scale = 1, gain = 0, offset = 0, error = std::numeric_limits<double>::infinity();
    bool turns = false;  // whether sums are negated
  };

  // Selects the scale and the direction. Few ties are enough to compare them.
  Match match(const CurveChannel& channel, int zero, bool few) const {
    const Match best = closest(channel, zero, true);
    if (few) return best;
    if (!(best.error < likely)) return closest(channel, zero, false);
    return fit(channel, best, zero, false);
  }

  // An error that other scales do not have.
  static constexpr double close = 1e-8;

 private:
  static constexpr std::size_t least_ties = 8;
  static constexpr int most_exponent = 6;
  static constexpr double likely = 1e-6;

  Match closest(const CurveChannel& channel, int zero, bool few) const {
    Match best;
    for (const bool turns : {false, true}) {
      for (int exponent = -most_exponent; exponent <= most_exponent; ++exponent) {
        Match own;
        own.scale = std::ldexp(1.0, exponent), own.turns = turns;
        own = fit(channel, own, zero, few);
        if (own.error < best.error) best = own;
        if (best.error < close) return best;
      }
      if (best.error < likely) break;
    }
    return best;
  }

  // Least squares of sum = gain * place + offset, for a scale and a direction.
  Match fit(const CurveChannel& channel, Match match, int zero, bool few) const {
    const std::vector<Crossing>& all = channel.crossings;
    const std::size_t stride = few ? std::max<std::size_t>(1, all.size() / 32) : 1;
    double count = 0, place = 0, sum = 0, places = 0, sums = 0, products = 0;
    const double sign = match.turns ? -1 : 1, middle = all.empty() ? 0 : sign * all.front().sum;
    for (std::size_t i = 0; i < all.size(); i += stride) {
      double x = 0;
      const bool rises = (all[i].tie < falling) != match.turns;
      if (!find((value_of(all[i].tie) - zero) / match.scale + zero, rises, x)) continue;
      const double y = sign * all[i].sum - middle;
      ++count, place += x, sum += y, places += x * x, sums += y * y, products += x * y;
    }
    match.error = std::numeric_limits<double>::infinity(), match.gain = 0;
    if (count < least_ties) return match;
    places -= place * place / count, sums -= sum * sum / count, products -= place * sum / count;
    if (!(places > 0 && products > 0)) return match;
    match.gain = products / places;
    match.offset = middle + (sum - match.gain * place) / count;
    match.error = std::max(0.0, sums - match.gain * products) / sums;
    return match;
  }

  // The place of a value, between ties of the reference.
  bool find(double value, bool rises, double& place) const {
    const double least = std::floor(value - 0.5);
    if (!(least >= 1 && least < falling - 3)) return false;
    const int tie = static_cast<int>(least) + (rises ? 0 : falling);
    for (int i = -1; i <= 2; ++i)
      if (!known_[tie + i]) return false;
    const double u = value - 0.5 - least;
    const double* const p = &places_[tie];
    place = p[0] + u * ((p[1] - p[-1]) / 2 + u * (p[-1] - 2.5 * p[0] + 2 * p[1] - p[2] / 2 +
                                                  u * (1.5 * (p[0] - p[1]) + (p[2] - p[-1]) / 2)));
    return true;
  }

  std::array<double, most_ties> places_{};
  std::array<bool, most_ties> known_{};
  bool is_valid_ = false;
};

// Estimates the curve and the channels.
class Estimate {
 public:
  explicit Estimate(std::vector<CurveChannel>& channels) : channels_(channels) {}

  bool run() {
    const auto longest = std::ranges::max_element(
        channels_, {}, [](const CurveChannel& channel) { return channel.crossings.size(); });
    const Matcher matcher(*longest);
    if (!matcher.is_valid()) return false;
    select_zero(matcher);
    for (CurveChannel& channel : channels_) apply(matcher.match(channel, zero_, false), channel);
    for (int round = 0; round < rounds; ++round) {
      if (!fit_curve()) return false;
      for (CurveChannel& channel : channels_) improve(channel);
    }
    return fit_curve();
  }

  int zero() const { return zero_; }
  const CurveShape& curve() const { return curve_; }

 private:
  static constexpr int rounds = 2;
  static constexpr std::size_t enough_channels = 64;
  static constexpr std::size_t most_tried = 5, most_zeros = 32;
  // Channels with a larger error do not count.
  static constexpr double most_error = 1e-4;

  static void apply(const Matcher::Match& match, CurveChannel& channel) {
    if (match.turns) turn(channel);
    channel.scale = match.scale, channel.gain = match.gain;
    channel.offset = match.offset, channel.error = match.error;
  }

  // Selects the index of 0, which scales do not move, by some channels with other scales. Two of
  // them select the indices that the others try.
  void select_zero(const Matcher& matcher) {
    std::vector<const CurveChannel*> tried;
    for (const CurveChannel& channel : channels_) {
      const auto own = matcher.match(channel, 0, true);
      if (channel.crossings.size() > 8 && !(own.error < Matcher::close && own.scale == 1))
        tried.push_back(&channel);
      if (tried.size() == most_tried) break;
    }
    if (tried.empty()) return;
    std::vector<std::pair<double, int>> scores;
    for (int zero = 0; zero < falling; ++zero) scores.emplace_back(0, zero);
    for (std::size_t i = 0; i < tried.size(); ++i) {
      if (i == 2) {
        std::ranges::sort(scores);
        scores.resize(most_zeros);
      }
      for (auto& [score, zero] : scores)
        score += std::log(std::min(1.0, matcher.match(*tried[i], zero, true).error) + 1e-12);
    }
    zero_ = std::ranges::min(scores).second;
  }

  // Fits the curve to the ties of all channels, and to an index half a tie beyond on either side.
  bool fit_curve() {
    std::vector<CurvePoint> points;
    const CurveChannel *first = nullptr, *last = nullptr;
    const auto add = [&](const CurveChannel& channel) {
      for (const Crossing& at : channel.crossings)
        points.push_back(point(channel, at.sum, value_of(at.tie)));
    };
    const std::size_t stride = (channels_.size() + enough_channels - 1) / enough_channels;
    for (std::size_t i = 0; i < channels_.size(); ++i) {
      const CurveChannel& channel = channels_[i];
      if (!counts(channel)) continue;
      if (i % stride == 0) add(channel);
      if (first == nullptr || begin_of(channel) < begin_of(*first)) first = &channel;
      if (last == nullptr || end_of(channel) > end_of(*last)) last = &channel;
    }
    if (first == nullptr) return false;
    add(*first), add(*last);
    const auto half = [](int tie) { return tie < falling ? 0.5 : -0.5; };
    const auto at = [](const CurveChannel& channel, std::size_t i) { return channel.crossings[i]; };
    const auto a = at(*first, 0), b = at(*first, 1);
    points.push_back(point(*first, a.sum - (b.sum - a.sum) / 2, value_of(a.tie) - half(a.tie)));
    const std::size_t size = last->crossings.size();
    const auto c = at(*last, size - 2), d = at(*last, size - 1);
    points.push_back(point(*last, d.sum + (d.sum - c.sum) / 2, value_of(d.tie) + half(d.tie)));
    return curve_.fit(std::move(points), std::max(1, 255 - zero_));
  }

  bool counts(const CurveChannel& channel) const {
    return channel.is_placed() && channel.error < most_error;
  }
  static double begin_of(const CurveChannel& channel) {
    return channel.place(channel.crossings.front().sum);
  }
  static double end_of(const CurveChannel& channel) {
    return channel.place(channel.crossings.back().sum);
  }
  CurvePoint point(const CurveChannel& channel, double sum, double index) const {
    return {channel.place(sum), (index - zero_) / channel.scale, channel.scale * channel.scale};
  }

  // One step of Gauss and Newton for place = a * sum + b: least squares of indices.
  void improve(CurveChannel& channel) const {
    if (!counts(channel)) return;
    double n[3] = {}, r[2] = {};
    const double middle = channel.crossings[channel.crossings.size() / 2].sum;
    for (const Crossing& at : channel.crossings) {
      const double place = channel.place(at.sum), x = (at.sum - middle) / channel.gain;
      const double rest = (value_of(at.tie) - zero_) / channel.scale - curve_.at(place);
      const double slope = curve_.slope_at(place);
      n[0] += slope * slope, n[1] += slope * slope * x, n[2] += slope * slope * x * x;
      r[0] += slope * rest, r[1] += slope * rest * x;
    }
    const double determinant = n[0] * n[2] - n[1] * n[1];
    if (!(determinant > 0)) return;
    const double shift = (n[2] * r[0] - n[1] * r[1]) / determinant,
                 factor = 1 + (n[0] * r[1] - n[1] * r[0]) / determinant;
    // A longer step is a rounding error: places of the longest channel are in [0, 1].
    if (!(factor > 0.5 && factor < 2 && std::abs(shift) < 1)) return;
    const double place = channel.place(middle) + shift;
    channel.gain /= factor;
    channel.offset = middle - channel.gain * place;
  }

  std::vector<CurveChannel>& channels_;
  int zero_ = 0;
  CurveShape curve_;
};

}  // namespace

bool CurveEstimate::fit(const PackedEpilogue& epilogue, std::int64_t count) {
  for (std::int64_t channel = 0; channel < count; ++channel)
    channels.push_back(channel_of(epilogue, channel));
  Estimate estimate(channels);
  if (!estimate.run()) return false;
  curve = estimate.curve(), zero = estimate.zero();
  return true;
}

}  // namespace anybit::lowbit
