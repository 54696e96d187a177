// SPDX-License-Identifier: Apache-2.0
#include "epilogue.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include "damage.hpp"
#include "scaled_steps.hpp"

namespace anybit::lowbit {

namespace {

std::int64_t whole_chunks(std::int64_t channels) {
  return (channels + chunk_channels - 1) / chunk_channels * chunk_channels;
}

Aligned<float> per_channel(Floats values, std::int64_t channels) {
  Aligned<float> all(whole_chunks(channels));
  for (std::int64_t i = 0; i < channels; ++i)
    all[i] = values[values.size() == 1 ? 0 : static_cast<std::size_t>(i)];
  return all;
}

void fill(Epilogue& to, const Thresholds& tail, std::int64_t channels, std::int64_t levels) {
  const std::int64_t count = levels - 1, padded = whole_chunks(channels);
  const auto threshold = [&](std::int64_t channel, std::int64_t i) {
    return tail.thresholds[static_cast<std::size_t>(channel * count + i)];
  };
  if (levels <= few_levels) {
    to.kind = TailKind::thresholds;
    to.thresholds = Aligned<std::int32_t>(padded * count);
    for (std::int64_t channel = 0; channel < channels; ++channel)
      for (std::int64_t i = 0; i < count; ++i)
        to.thresholds[(channel / panel_channels * count + i) * panel_channels +
                      channel % panel_channels] = threshold(channel, i);
    return;
  }
  to.kind = TailKind::many_thresholds;
  to.thresholds = Aligned<std::int32_t>(padded * 256);
  for (std::int64_t channel = 0; channel < padded; ++channel)
    for (std::int64_t i = 0; i < 256; ++i)
      to.thresholds[channel * 256 + i] = channel < channels && i < count
                                             ? threshold(channel, i)
                                             : std::numeric_limits<std::int32_t>::max();
}

void fill(Epilogue& to, const Affine& tail, std::int64_t channels, std::int64_t) {
  to.kind = TailKind::affine;
  to.gains = per_channel(tail.gains, channels);
  to.offsets = per_channel(tail.offsets, channels);
  to.shift = static_cast<std::int32_t>(tail.shift);
}

void fill(Epilogue& to, const Table& tail, std::int64_t channels, std::int64_t) {
  to.kind = TailKind::table;
  to.entries.assign(tail.entries.begin(), tail.entries.end());
  to.first = Aligned<std::int64_t>(whole_chunks(channels));
  const auto length = static_cast<std::int64_t>(tail.entries.size()) / channels;
  for (std::int64_t channel = 0; channel < channels; ++channel)
    to.first[channel] = channel * length - tail.first[static_cast<std::size_t>(channel)];
}

void fill(Epilogue& to, const Piecewise& tail, std::int64_t channels, std::int64_t) {
  to.kind = TailKind::pieces;
  const std::int64_t padded = whole_chunks(channels);
  const auto count = static_cast<std::int64_t>(tail.entries.size()) / channels;
  to.thresholds = Aligned<std::int32_t>(padded * most_pieces);
  to.piece_codes = Aligned<std::uint8_t>(padded * most_pieces);
  std::fill_n(to.thresholds.data(), to.thresholds.size(), std::numeric_limits<std::int32_t>::max());
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const auto starts = tail.starts.subspan(static_cast<std::size_t>(channel * (count - 1)),
                                            static_cast<std::size_t>(count - 1));
    const auto entries = tail.entries.subspan(static_cast<std::size_t>(channel * count),
                                              static_cast<std::size_t>(count));
    std::copy(starts.begin(), starts.end(), &to.thresholds[channel * most_pieces]);
    std::uint8_t* const codes = &to.piece_codes[channel * most_pieces];
    // The last piece has no end: a sum may have to be less than the largest after folding.
    std::fill(std::copy(entries.begin(), entries.end(), codes), codes + most_pieces,
              entries.back());
  }
}

void fill_steps(Epilogue& to, const auto& tail, std::int64_t channels) {
  to.gains = per_channel(tail.scales, channels);
  for (const Step& step : tail.steps) {
    to.operands.push_back(per_channel(step.operands, channels));
    to.steps.push_back({step.kind(), to.operands.back().data()});
  }
}

void fill(Epilogue& to, const Arithmetic& tail, std::int64_t channels, std::int64_t) {
  to.kind = TailKind::arithmetic;
  fill_steps(to, tail, channels);
}

void fill(Epilogue& to, const Rounded& tail, std::int64_t channels, std::int64_t) {
  to.kind = TailKind::rounded;
  fill_steps(to, tail, channels);
  to.shift = static_cast<std::int32_t>(tail.shift);
}

void fill(Epilogue& to, const Scaled& tail, std::int64_t channels, std::int64_t levels) {
  fill(to, ScaledSteps(tail, levels).tail(), channels, levels);
}

std::int32_t& threshold_of(const Epilogue& tail, std::int64_t channel, std::int64_t i,
                           std::int64_t count) {
  return tail.kind == TailKind::many_thresholds ? tail.thresholds[channel * 256 + i]
         : tail.kind == TailKind::pieces
             ? tail.thresholds[channel * most_pieces + i]
             : tail.thresholds[(channel / panel_channels * count + i) * panel_channels +
                               channel % panel_channels];
}

// Line fit of many thresholds: a multiplication and an addition give the index, except close to a
// threshold, where the thresholds are searched.

using Int = std::numeric_limits<std::int32_t>;

// Line fit of a channel; it covers thresholds [first, last).
struct Line {
  float gain = 0, offset = 0, limit = 0.5f;
  std::int64_t first = 0, last = 0;
};

// With a larger distance to the line, in steps, too many sums would need a search.
constexpr double most_off = 0.25;

float height(const Line& line, double sum) {
  const float product = static_cast<float>(sum) * line.gain;
  return product + line.offset;
}

// Fits a line to thresholds [first, last), and computes their largest distance. Index k begins at
// threshold k - 1, where the line should have the value k - 1/2. The line is non-decreasing: bounds
// that hold at and just before all thresholds hold between them.
std::optional<Line> fit_line(const std::int32_t* thresholds, std::int64_t first,
                             std::int64_t last) {
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

// Leaves out thresholds at the ends, which may be far off: unreachable sums, or kinks of a
// function.
std::optional<Line> fit_inner_line(const std::int32_t* thresholds, std::int64_t count) {
  std::int64_t first = 0, last = count;
  if (count > 1 && thresholds[0] == thresholds[count - 1]) {
    first = last = thresholds[0] > 0 ? 0 : count;
  } else if (count > 1) {
    while (thresholds[first + 1] == thresholds[0]) ++first;
    while (thresholds[last - 2] == thresholds[count - 1]) --last;
    first += first > 0 ? 1 : 0;
    last -= last < count ? 1 : 0;
  }
  for (const std::int64_t skipped_first : {0, 1})
    for (const std::int64_t skipped_last : {0, 1})
      if (const auto line =
              fit_line(thresholds, std::min(first + skipped_first, last),
                       std::max(std::min(first + skipped_first, last), last - skipped_last)))
        return line;
  return std::nullopt;
}

// Fills the buckets of a channel and returns the most thresholds within one; more than `count` if
// the thresholds are too far apart.
int fill_buckets(const std::int32_t* thresholds, std::int64_t count, std::uint8_t* codes,
                 std::int32_t& low, std::int32_t& high, std::int32_t& shift) {
  // Thresholds at the ends of int32 are reached always, and never.
  const std::int32_t* const first = std::upper_bound(thresholds, thresholds + count, Int::min());
  const std::int32_t* const last = std::lower_bound(first, thresholds + count, Int::max());
  low = first < last ? *first : 0, high = first < last ? last[-1] : 0, shift = 0;
  const std::int64_t span = std::int64_t{high} - low;
  if (span > Int::max()) return static_cast<int>(count) + 1;
  while (span >> shift >= bucket_count) ++shift;
  std::ptrdiff_t most = 0;
  for (std::int64_t bucket = 0; bucket < bucket_count; ++bucket) {
    const std::int64_t start = low + (bucket << shift), end = start + (std::int64_t{1} << shift);
    // Sums before `low` are in the first bucket.
    const std::int32_t* const reached =
        bucket == 0 ? first : std::upper_bound(first, last, start, std::less<std::int64_t>());
    codes[bucket] = static_cast<std::uint8_t>(reached - thresholds);
    most =
        std::max(most, std::lower_bound(reached, last, end, std::less<std::int64_t>()) - reached);
  }
  return static_cast<int>(most);
}

// Sums of a channel divided into buckets: see PackedSteps.
struct Division {
  const std::int32_t *begin, *first, *last;  // all thresholds, and those that some sums reach
  std::int64_t low, shift = 0;

  Division(const std::int32_t* thresholds, std::int64_t count, std::int64_t buckets)
      : begin(thresholds),
        first(std::upper_bound(thresholds, thresholds + count, Int::min())),
        last(std::lower_bound(first, thresholds + count, Int::max())),
        low(first < last ? std::int64_t{*first} - 1 : 0) {
    while (span() >> shift >= buckets) ++shift;
  }
  std::int64_t span() const { return first < last ? last[-1] - low : 0; }

  // Returns whether each bucket has at most one threshold, and distances fit 24 bits.
  bool is_fine() const {
    if (span() > Int::max() || shift > 24) return false;
    for (const std::int32_t* at = first; at + 1 < last; ++at)
      if ((at[0] - low) >> shift == (at[1] - low) >> shift) return false;
    return true;
  }

  // Writes the entries of a channel, which are a panel apart.
  void fill(std::int32_t* entries, std::int64_t buckets) const {
    const std::int32_t* next = first;
    for (std::int64_t bucket = 0; bucket < buckets; ++bucket, entries += panel_channels) {
      const std::int64_t start = low + (bucket << shift), end = start + (std::int64_t{1} << shift);
      while (next < last && *next < start) ++next;
      const auto code = static_cast<std::uint32_t>(next - begin) << 24;
      const bool is_inside = next < last && *next < end;
      const std::int64_t carry = is_inside ? (1 << 24) - (*next - start) : 0;
      *entries = static_cast<std::int32_t>(code + static_cast<std::uint32_t>(carry));
    }
  }
};

}  // namespace

void check_saturation(Epilogue& tail, std::int64_t channels, std::int64_t levels) {
  const bool has_lines = tail.kind == TailKind::rounded_lines;
  if (levels != 256 || (!has_lines && tail.kind != TailKind::affine)) return;
  // Sums are below 2^31, and results below 2^31 with the shift, which is at most 2^20.
  constexpr float most_gain = 0.25f, most_offset = 0x1p29f;
  const Aligned<float>& gains = has_lines ? tail.slopes : tail.gains;
  for (std::int64_t channel = 0; channel < gains.size(); ++channel)
    if (!(std::abs(gains[channel]) <= most_gain) ||
        !(std::abs(tail.offsets[channel]) <= most_offset))
      return;
  for (std::int64_t channel = 0; channel < channels && has_lines; ++channel) {
    const bool is_replayed = tail.limits[channel] < 0;
    if (!is_replayed && (tail.bottoms[channel] != 0 || tail.tops[channel] != 255)) return;
  }
  tail.saturates = true;
}

void pack_steps(Epilogue& tail, std::int64_t channels, std::int64_t levels,
                std::int64_t most_bytes) {
  if (tail.kind != TailKind::many_thresholds) return;
  const std::int64_t padded = tail.thresholds.size() / 256;
  const auto division = [&](std::int64_t channel, std::int64_t buckets) {
    return Division(tail.thresholds.data() + channel * 256, levels - 1, buckets);
  };
  const auto fits = [&](std::int64_t buckets) {
    for (std::int64_t channel = 0; channel < channels; ++channel)
      if (!division(channel, buckets).is_fine()) return false;
    return padded * buckets * 4 <= most_bytes;
  };
  const std::int64_t buckets = fits(bucket_count) ? bucket_count : 2 * bucket_count;
  if (buckets > bucket_count && !fits(buckets)) return;
  tail.packed = {Aligned<std::int32_t>(padded * buckets), static_cast<int>(buckets)};
  for (Aligned<std::int32_t>* array :
       {&tail.buckets.lows, &tail.buckets.highs, &tail.buckets.shifts})
    *array = Aligned<std::int32_t>(padded);
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const Division own = division(channel, buckets);
    tail.buckets.lows[channel] = static_cast<std::int32_t>(own.low);
    tail.buckets.highs[channel] = static_cast<std::int32_t>(own.low + own.span());
    tail.buckets.shifts[channel] = static_cast<std::int32_t>(own.shift);
    own.fill(tail.packed.entries.data() + channel / panel_channels * panel_channels * buckets +
                 channel % panel_channels,
             buckets);
  }
  tail.thresholds = {};
  tail.kind = TailKind::packed_steps;
}

Epilogue make_epilogue(const Tail& tail, std::int64_t channels, std::int64_t levels,
                       std::int64_t most_bytes) {
  // A scalar operand of a step is expanded to one per channel.
  const auto steps = std::visit(
      [](const auto& epilogue) -> std::size_t {
        if constexpr (requires { epilogue.steps; }) return epilogue.steps.size();
        return 0;
      },
      tail);
  constexpr std::int64_t operand = sizeof(float);
  need_room(static_cast<std::int64_t>(steps) * whole_chunks(channels) * operand, most_bytes);
  const bool has_thresholds =
      std::holds_alternative<Thresholds>(tail) || std::holds_alternative<Scaled>(tail);
  if (has_thresholds && levels > few_levels)  // rows of thresholds and of buckets
    need_room(whole_chunks(channels) * (256 * 4 + bucket_count), most_bytes);
  if (std::holds_alternative<Piecewise>(tail))  // rows of starts and codes
    need_room(whole_chunks(channels) * most_pieces * 5, most_bytes);
  Epilogue state;
  std::visit([&](const auto& epilogue) { fill(state, epilogue, channels, levels); }, tail);
  return state;
}

TailBlock make_tail_block(const Epilogue& tail, Coding coding, std::int64_t levels) {
  TailBlock block;  // uninitialized: zeroing takes longer than a small epilogue
  block.coding = coding;
  block.levels = static_cast<int>(levels);
  block.shift = tail.shift;
  block.saturates = tail.saturates;
  block.entries = tail.entries.data();
  block.steps = tail.steps.data();
  block.step_count = static_cast<int>(tail.steps.size());
  return block;
}

void set_chunk(TailBlock& block, const Epilogue& tail, std::int64_t channel) {
  block.first_channel = channel;
  const bool has_pieces = tail.kind == TailKind::pieces || tail.kind == TailKind::packed_pieces;
  const std::int64_t thresholds = has_pieces                       ? most_pieces
                                  : has_many_thresholds(tail.kind) ? 256
                                                                   : block.levels - 1;
  block.thresholds = tail.thresholds.from(channel * thresholds);
  block.gains = tail.gains.from(channel);
  block.offsets = tail.offsets.from(channel);
  block.slopes = tail.slopes.from(channel);
  block.limits = tail.limits.from(channel);
  block.bottoms = tail.bottoms.from(channel), block.tops = tail.tops.from(channel);
  block.lows = tail.lows.from(channel), block.highs = tail.highs.from(channel);
  const Buckets& buckets = tail.buckets;
  block.bucket_codes = buckets.codes.from(channel * bucket_count);
  block.bucket_lows = buckets.lows.from(channel);
  block.bucket_highs = buckets.highs.from(channel);
  block.bucket_shifts = buckets.shifts.from(channel), block.bucket_steps = buckets.steps;
  block.packed_steps = tail.packed.entries.from(channel * tail.packed.count);
  block.packed_count = tail.packed.count;
  block.piece_codes = tail.piece_codes.from(channel * most_pieces);
  if (tail.kind == TailKind::packed_pieces)
    block.piece_panels = &tail.piece_panels[static_cast<std::size_t>(channel / panel_channels)];
  block.side_buckets = tail.side_buckets;
  block.first = tail.first.from(channel);
}

void fold_into_thresholds(Epilogue& tail, std::int64_t channel, std::int64_t count,
                          std::int64_t scale, std::int64_t constant) {
  constexpr std::int64_t never = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t always = std::numeric_limits<std::int32_t>::min();
  for (std::int64_t i = 0; i < count; ++i) {
    std::int32_t& threshold = threshold_of(tail, channel, i, count);
    const std::int64_t rest = threshold - constant;
    // For a negative scale: -sum >= t is ~sum >= t - 1.
    const std::int64_t own = scale > 0   ? quotient_up(rest, scale)
                             : scale < 0 ? quotient_up(rest, -scale) - 1
                             : rest > 0  ? never
                                         : always;
    threshold = static_cast<std::int32_t>(std::clamp(own, always, never));
  }
}

void make_buckets(Epilogue& tail, std::int64_t channels, std::int64_t levels) {
  if (!has_many_thresholds(tail.kind)) return;
  // Each step is as expensive as one of the eight steps of a search by halving.
  constexpr int most_steps = 4;
  const std::int64_t padded = tail.thresholds.size() / 256;
  Buckets buckets;
  // A gather of bytes reads three more.
  buckets.codes = Aligned<std::uint8_t>(padded * bucket_count + 4);
  for (Aligned<std::int32_t>* array : {&buckets.lows, &buckets.highs, &buckets.shifts})
    *array = Aligned<std::int32_t>(padded);
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const int steps =
        fill_buckets(tail.thresholds.data() + channel * 256, levels - 1,
                     buckets.codes.data() + channel * bucket_count, buckets.lows[channel],
                     buckets.highs[channel], buckets.shifts[channel]);
    buckets.steps = std::max(buckets.steps, steps);
    if (buckets.steps > most_steps) return;
  }
  tail.buckets = std::move(buckets);
}

void fit_lines(Epilogue& tail, std::int64_t channels, std::int64_t levels) {
  if (tail.kind != TailKind::many_thresholds) return;
  const std::int64_t padded = tail.thresholds.size() / 256;
  Epilogue lined;
  for (Aligned<float>* array :
       {&lined.gains, &lined.offsets, &lined.limits, &lined.bottoms, &lined.tops})
    *array = Aligned<float>(padded);
  lined.lows = Aligned<std::int32_t>(padded), lined.highs = Aligned<std::int32_t>(padded);
  std::int64_t without = 0;
  for (std::int64_t channel = 0; channel < padded; ++channel) {
    const std::int32_t* const thresholds = tail.thresholds.data() + channel * 256;
    const auto fitted = channel < channels ? fit_inner_line(thresholds, levels - 1) : Line{};
    const Line line = fitted.value_or(Line{});
    without += fitted ? 0 : 1;
    lined.gains[channel] = line.gain, lined.offsets[channel] = line.offset;
    lined.limits[channel] = fitted ? line.limit : -1.0f;
    lined.bottoms[channel] = static_cast<float>(line.first);
    lined.tops[channel] = static_cast<float>(line.last);
    lined.lows[channel] = line.first > 0 ? thresholds[line.first - 1] : Int::min();
    lined.highs[channel] = line.last < levels - 1 ? thresholds[line.last] : Int::max();
  }
  if (without * 8 > channels) return;
  lined.kind = TailKind::lines;
  lined.thresholds = std::move(tail.thresholds), lined.buckets = std::move(tail.buckets);
  tail = std::move(lined);
}

}  // namespace anybit::lowbit
