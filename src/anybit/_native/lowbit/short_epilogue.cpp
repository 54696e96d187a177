// SPDX-License-Identifier: Apache-2.0
#include "short_epilogue.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "damage.hpp"

namespace anybit::lowbit {

namespace {

struct Range {
  std::int64_t low = 0, high = 0;
};

// The accumulators of a channel that some indices reach. A tap in the border contributes 0.
Range reachable(const ProductTask& task, const Weights& weights, std::int64_t channel) {
  const std::int64_t one = task.source.lowest,
                     other = one + task.source.step * (task.source.levels - 1);
  std::int64_t least = std::min(one, other), most = std::max(one, other);
  if (!Border::of(task.product->window).empty())
    least = std::min<std::int64_t>(least, 0), most = std::max<std::int64_t>(most, 0);
  std::int64_t positive = 0, negative = 0;
  const std::int8_t* const own = weights.of(channel);
  for (std::int64_t i = 0; i < weights.taps * weights.inner; ++i)
    (own[i] > 0 ? positive : negative) += own[i];
  return {positive * least + negative * most, positive * most + negative * least};
}

// A non-decreasing function of the range to indices: `first`, and from starts[i] on at least
// first + i + 1.
struct Staircase {
  Range range;
  int first = 0;
  std::vector<std::int64_t> starts;
  double slope = 0;  // indices per number, if the function is a rounded line
};

// Thresholds of a channel, in accumulators.
Staircase staircase_of(const Thresholds& epilogue, std::int64_t channel, std::int64_t count,
                       const Range& range) {
  Staircase stairs;
  stairs.range = range;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t start = epilogue.thresholds[static_cast<std::size_t>(channel * count + i)];
    if (start <= range.low) ++stairs.first;
    else if (start <= range.high) stairs.starts.push_back(start);
  }
  std::sort(stairs.starts.begin(), stairs.starts.end());
  return stairs;
}

// An affine epilogue of a channel, as kernels compute it.
class AffineIndex {
 public:
  AffineIndex(const Affine& epilogue, std::int64_t channel, std::int64_t levels)
      : gain_(of(epilogue.gains, channel)),
        offset_(of(epilogue.offsets, channel)),
        bottom_(-static_cast<float>(epilogue.shift)),
        top_(bottom_ + static_cast<float>(levels - 1)),
        shift_(static_cast<int>(epilogue.shift)) {}

  float gain() const { return gain_; }
  bool falls() const { return gain_ < 0; }

  int operator()(std::int64_t accumulator) const {
    float y = static_cast<float>(accumulator) * gain_;
    y = y + offset_;
    const float above = y > bottom_ ? y : bottom_, inside = above < top_ ? above : top_;
    return static_cast<int>(std::nearbyint(inside)) + shift_;
  }

  // Near the first accumulator of an index.
  double near_start(int index) const {
    return (index - shift_ - 0.5 - static_cast<double>(offset_)) / static_cast<double>(gain_);
  }

 private:
  static float of(Floats values, std::int64_t channel) {
    return values[values.size() == 1 ? 0 : static_cast<std::size_t>(channel)];
  }

  float gain_, offset_, bottom_, top_;
  int shift_;
};

// Steps of an affine epilogue. Where it decreases, they are those of the negated accumulator.
Staircase staircase_of(const AffineIndex& index_of, Range range) {
  const std::int64_t sign = index_of.falls() ? -1 : 1;
  if (sign < 0) range = {-range.high, -range.low};
  const auto index = [&](std::int64_t x) { return index_of(sign * x); };
  Staircase stairs;
  stairs.range = range, stairs.first = index(range.low);
  stairs.slope = std::abs(static_cast<double>(index_of.gain()));
  const int last = index(range.high);
  std::int64_t before = range.low;  // the index is not reached here, but at `reached`
  for (int next = stairs.first + 1; next <= last; ++next) {
    std::int64_t reached = range.high;
    const double guess = static_cast<double>(sign) * index_of.near_start(next);
    if (guess > static_cast<double>(before + 2) && guess < static_cast<double>(reached - 2)) {
      const auto middle = static_cast<std::int64_t>(guess);
      if (index(middle - 1) < next) before = middle - 1;
      if (index(middle + 2) >= next) reached = middle + 2;
    }
    while (reached - before > 1) {
      const std::int64_t middle = before + (reached - before) / 2;
      (index(middle) >= next ? reached : before) = middle;
    }
    stairs.starts.push_back(reached);
    // Further indices may begin at the same number.
    before = reached - 1;
  }
  return stairs;
}

// index = upper 16 bits of (clamp(x, low, high) * factor + term) * multiplier, shifted right.
struct ShortScaled {
  std::int64_t low = 0, high = 0, factor = 0, term = 0, multiplier = 0;

  std::int64_t at(std::int64_t x, int shift) const {
    const std::int64_t inside = std::clamp(x, low, high);
    return (inside * factor + term) * multiplier >> 16 >> shift;
  }
  // Whether no intermediate result exceeds 16 bits.
  bool fits() const {
    const auto [least, most] = std::minmax({low * factor + term, high * factor + term});
    return least >= 0 && most <= 65535 && multiplier <= 65535;
  }
};

// Non-decreasing functions that agree at the ends and on both sides of each step are equal.
bool is_equal(const ShortScaled& scaled, const Staircase& stairs, int shift) {
  if (!scaled.fits() || scaled.factor < 0) return false;
  const auto last = stairs.first + static_cast<std::int64_t>(stairs.starts.size());
  if (scaled.at(stairs.range.low, shift) != stairs.first ||
      scaled.at(stairs.range.high, shift) != last)
    return false;
  for (std::size_t i = 0; i < stairs.starts.size(); ++i) {
    const std::int64_t index = stairs.first + static_cast<std::int64_t>(i) + 1;
    if (scaled.at(stairs.starts[i], shift) < index ||
        scaled.at(stairs.starts[i] - 1, shift) >= index)
      return false;
  }
  return true;
}

// Finds the term for a factor and a multiplier.
std::optional<ShortScaled> with_term(const Staircase& stairs, std::int64_t factor,
                                     std::int64_t multiplier, int shift) {
  const std::int64_t low = stairs.starts.front() - 1, high = stairs.starts.back();
  const auto start_of = [&](std::int64_t index) {
    return quotient_up(index << (16 + shift), multiplier);
  };
  // Bounds of low * factor + term.
  const auto count = static_cast<std::int64_t>(stairs.starts.size());
  std::int64_t least = stairs.first > 0 ? start_of(stairs.first) : 0;
  std::int64_t most =
      std::min<std::int64_t>(65535, start_of(stairs.first + count + 1) - 1) - factor * (high - low);
  for (std::int64_t i = 0; i < count && least <= most; ++i) {
    const std::int64_t start = start_of(stairs.first + i + 1);
    const std::int64_t away = factor * (stairs.starts[static_cast<std::size_t>(i)] - low);
    least = std::max(least, start - away);
    most = std::min(most, start - 1 - away + factor);
  }
  if (least > most) return std::nullopt;
  return ShortScaled{low, high, factor, (least + most) / 2 - factor * low, multiplier};
}

std::optional<ShortScaled> find_scaled(const Staircase& stairs, int shift) {
  if (stairs.starts.empty()) {
    const std::int64_t term = (std::int64_t{stairs.first} << shift) + (1 << shift) / 2;
    return ShortScaled{stairs.range.low, stairs.range.low, 0, term, 65535};
  }
  const auto steps = static_cast<double>(stairs.starts.size());
  const auto length = static_cast<double>(stairs.starts.back() - stairs.starts.front());
  // A slope that fits the steps, unless the one of the line is known.
  double slope = length > 0 ? (steps - 1) / length : steps;
  if (steps > 2 && length > 0 && std::abs(slope / stairs.slope - 1) < 1) slope = stairs.slope;
  if (!(slope > 0)) slope = 1;
  const double room = length + 1 + (stairs.first + 1) / slope;
  const auto most_factor = static_cast<std::int64_t>(65535 / room);
  constexpr int factors = 3, tries = 12;
  for (std::int64_t factor = most_factor; factor > 0 && factor > most_factor - factors; --factor) {
    const double middle = std::min(
        65535.0, slope * static_cast<double>(1 << 16 << shift) / static_cast<double>(factor));
    // Further off, the line leaves the steps.
    const auto reach = static_cast<std::int64_t>(middle / (length + 2)) + 2;
    const std::int64_t stride = std::max<std::int64_t>(1, reach / tries);
    for (std::int64_t i = 0; i < 2 * tries; ++i) {
      const std::int64_t off = (i + 1) / 2 * (i % 2 == 0 ? stride : -stride);
      const std::int64_t multiplier = std::llround(middle) + off;
      if (multiplier < 1 || multiplier > 65535) continue;
      const auto scaled = with_term(stairs, factor, multiplier, shift);
      if (scaled && is_equal(*scaled, stairs, shift)) return scaled;
    }
  }
  return std::nullopt;
}

std::int16_t low_bits(std::int64_t number) {
  return static_cast<std::int16_t>(static_cast<std::uint16_t>(static_cast<std::uint64_t>(number)));
}

// Fills the constants of a product's short epilogue, block by block.
class ShortEpilogueMaker {
 public:
  ShortEpilogueMaker(const ProductTask& task, const Weights& weights, const Accumulation& from,
                     Coding target)
      : task_(task),
        epilogue_(task.product->epilogue),
        weights_(weights),
        from_(from),
        levels_(task.target.levels),
        // Few bits need no numbers.
        counts_(target != Coding::bytes),
        ranges_(static_cast<std::size_t>(weights.channels)) {}

  ShortEpilogue make() {
    const std::int64_t channels = weights_.channels;
    bool any = false;
    for (std::int64_t first = 0; first < channels; first += chunk_channels) {
      const bool fits = fits_16_bits(first, std::min(channels, first + chunk_channels));
      to_.chunks.push_back(fits ? 1 : 0);
      any = any || fits;
    }
    if (!any) return {};
    start();
    for (std::int64_t first = 0; first < from_.padded; first += short_channels)
      to_.forms.push_back(to_.covers(static_cast<std::size_t>(first / chunk_channels))
                              ? form_of(first, std::min(channels, first + short_channels))
                              : ShortForm::none);
    for (std::size_t block = 0; block < to_.forms.size(); ++block)
      if (to_.forms[block] == ShortForm::none) to_.chunks[block / 2] = 0;
    if (std::ranges::find(to_.chunks, 1) == to_.chunks.end()) return {};
    return std::move(to_);
  }

 private:
  std::int64_t sign_of(std::int64_t channel) const {
    const auto* const thresholds = std::get_if<Thresholds>(&epilogue_);
    return thresholds == nullptr ? 1 : thresholds->directions[static_cast<std::size_t>(channel)];
  }

  // Computes the ranges of channels [first, last), and whether centered ones fit.
  bool fits_16_bits(std::int64_t first, std::int64_t last) {
    for (std::int64_t channel = first; channel < last; ++channel) {
      Range& range = ranges_[static_cast<std::size_t>(channel)];
      range = reachable(task_, weights_, channel);
      if (sign_of(channel) < 0) range = {-range.high, -range.low};
      if (range.high - range.low > 65534) return false;
    }
    return true;
  }

  void start() {
    const std::int64_t padded = from_.padded;
    for (Aligned<std::int16_t>* array :
         {&to_.scales, &to_.lows, &to_.highs, &to_.factors, &to_.terms, &to_.multipliers})
      *array = Aligned<std::int16_t>(padded);
    to_.centers = Aligned<std::int32_t>(padded);
    to_.thresholds = Aligned<std::int16_t>(compares() ? padded * (levels_ - 1) : 0);
    to_.constants = Aligned<std::int16_t>(from_.constants.size());
    to_.right_shift = 16 - std::bit_width(static_cast<std::uint64_t>(levels_ - 1));
    bool plain = !from_.has_addends;
    for (std::int64_t channel = 0; channel < weights_.channels; ++channel) {
      to_.scales[channel] = low_bits(from_.scales[channel]);
      plain = plain && from_.scales[channel] == 1;
      const Range& range = ranges_[static_cast<std::size_t>(channel)];
      const bool is_centered = range.low >= -32767 && range.high <= 32767;
      to_.centers[channel] =
          is_centered ? 0 : static_cast<std::int32_t>((range.low + range.high) / 2);
      for (std::int64_t place = channel; place < from_.constants.size(); place += padded)
        to_.constants[place] =
            low_bits(std::int64_t{from_.constants[place]} - to_.centers[channel]);
    }
    const std::int16_t* const constants = to_.constants.data();
    const bool bare =
        std::all_of(constants, constants + to_.constants.size(), [](auto c) { return c == 0; });
    to_.settling = !plain ? Settling::general : bare ? Settling::bare : Settling::plain;
  }

  bool compares() const {
    return std::holds_alternative<Thresholds>(epilogue_) && levels_ <= few_levels;
  }

  ShortForm form_of(std::int64_t first, std::int64_t last) {
    if (counts_ && compares()) return fill_thresholds(first, last), ShortForm::thresholds;
    if (is_scaled(first, last)) return ShortForm::scaled;
    if (compares()) return fill_thresholds(first, last), ShortForm::thresholds;
    return std::holds_alternative<Affine>(epilogue_) ? ShortForm::affine : ShortForm::none;
  }

  void fill_thresholds(std::int64_t first, std::int64_t last) {
    const auto& epilogue = std::get<Thresholds>(epilogue_);
    const std::int64_t count = levels_ - 1;
    for (std::int64_t channel = first; channel < last; ++channel)
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t threshold =
            epilogue.thresholds[static_cast<std::size_t>(channel * count + i)];
        // No number is -32768: that bound is always exceeded, and 32767 never.
        const std::int64_t bound =
            std::clamp<std::int64_t>(threshold - 1 - to_.centers[channel], -32768, 32767);
        to_.thresholds[first * count + i * short_channels + channel - first] =
            static_cast<std::int16_t>(bound);
      }
  }

  bool is_scaled(std::int64_t first, std::int64_t last) {
    for (std::int64_t channel = first; channel < last; ++channel) {
      bool falls = false;
      const auto stairs = staircase(channel, falls);
      if (!stairs) return false;
      const auto scaled = find_scaled(*stairs, to_.right_shift);
      if (!scaled) return false;
      const std::int64_t sign = falls ? -1 : 1, center = to_.centers[channel];
      const auto [low, high] = std::minmax({sign * scaled->low, sign * scaled->high});
      const std::int64_t factor = sign * scaled->factor;
      to_.lows[channel] = static_cast<std::int16_t>(low - center);
      to_.highs[channel] = static_cast<std::int16_t>(high - center);
      to_.factors[channel] = low_bits(factor);
      to_.terms[channel] = low_bits(scaled->term + factor * center);
      to_.multipliers[channel] = low_bits(scaled->multiplier);
    }
    return true;
  }

  // Null for epilogues that need not be monotone.
  std::optional<Staircase> staircase(std::int64_t channel, bool& falls) const {
    const Range& range = ranges_[static_cast<std::size_t>(channel)];
    if (const auto* const epilogue = std::get_if<Thresholds>(&epilogue_))
      return staircase_of(*epilogue, channel, levels_ - 1, range);
    const auto* const epilogue = std::get_if<Affine>(&epilogue_);
    if (epilogue == nullptr) return std::nullopt;
    const AffineIndex index(*epilogue, channel, levels_);
    falls = index.falls();
    return staircase_of(index, range);
  }

  const ProductTask& task_;
  const Epilogue& epilogue_;
  const Weights& weights_;
  const Accumulation& from_;
  const std::int64_t levels_;
  const bool counts_;
  std::vector<Range> ranges_;
  ShortEpilogue to_;
};

}  // namespace

std::size_t ShortEpilogue::bytes() const {
  return scales.bytes() + constants.bytes() + lows.bytes() + highs.bytes() + factors.bytes() +
         terms.bytes() + multipliers.bytes() + thresholds.bytes() + centers.bytes();
}

ShortEpilogueBlock ShortEpilogue::block(Coding target, std::int64_t levels,
                                        std::int32_t shift) const {
  ShortEpilogueBlock block;
  block.coding = target, block.levels = static_cast<int>(levels), block.shift = shift;
  block.settling = settling, block.right_shift = right_shift;
  return block;
}

void ShortEpilogue::set_chunk(ShortEpilogueBlock& block, const PackedEpilogue& epilogue,
                              std::int64_t channel) const {
  block.forms = forms.data() + channel / short_channels;
  block.scales = scales.from(channel), block.centers = centers.from(channel);
  block.constants = constants.from(channel);
  block.lows = lows.from(channel), block.highs = highs.from(channel);
  block.factors = factors.from(channel), block.terms = terms.from(channel);
  block.multipliers = multipliers.from(channel);
  block.thresholds = thresholds.from(channel * (block.levels - 1));
  block.gains = epilogue.gains.from(channel), block.offsets = epilogue.offsets.from(channel);
}

ShortEpilogue make_short_epilogue(const ProductTask& task, const Weights& weights,
                                  const Accumulation& from, Coding target) {
  const Epilogue& epilogue = task.product->epilogue;
  if (!std::holds_alternative<Thresholds>(epilogue) && !std::holds_alternative<Affine>(epilogue))
    return {};
  need_room(from.constants.size() * 2, task.most_bytes);
  return ShortEpilogueMaker(task, weights, from, target).make();
}

}  // namespace anybit::lowbit
