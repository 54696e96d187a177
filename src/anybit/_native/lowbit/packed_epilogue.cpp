// SPDX-License-Identifier: Apache-2.0
#include "packed_epilogue.hpp"

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

void fill(PackedEpilogue& to, const Thresholds& epilogue, std::int64_t channels,
          std::int64_t levels) {
  const std::int64_t count = levels - 1, padded = whole_chunks(channels);
  const auto threshold = [&](std::int64_t channel, std::int64_t i) {
    return epilogue.thresholds[static_cast<std::size_t>(channel * count + i)];
  };
  if (levels <= few_levels) {
    to.kind = EpilogueKind::thresholds;
    to.thresholds = Aligned<std::int32_t>(padded * count);
    for (std::int64_t channel = 0; channel < channels; ++channel)
      for (std::int64_t i = 0; i < count; ++i)
        to.thresholds[(channel / panel_channels * count + i) * panel_channels +
                      channel % panel_channels] = threshold(channel, i);
    return;
  }
  to.kind = EpilogueKind::many_thresholds;
  to.thresholds = Aligned<std::int32_t>(padded * 256);
  for (std::int64_t channel = 0; channel < padded; ++channel)
    for (std::int64_t i = 0; i < 256; ++i)
      to.thresholds[channel * 256 + i] = channel < channels && i < count
                                             ? threshold(channel, i)
                                             : std::numeric_limits<std::int32_t>::max();
}

void fill(PackedEpilogue& to, const Affine& epilogue, std::int64_t channels, std::int64_t) {
  to.kind = EpilogueKind::affine;
  to.gains = per_channel(epilogue.gains, channels);
  to.offsets = per_channel(epilogue.offsets, channels);
  to.shift = static_cast<std::int32_t>(epilogue.shift);
}

void fill(PackedEpilogue& to, const Table& epilogue, std::int64_t channels, std::int64_t) {
  to.kind = EpilogueKind::table;
  to.entries.assign(epilogue.entries.begin(), epilogue.entries.end());
  to.first = Aligned<std::int64_t>(whole_chunks(channels));
  const auto length = static_cast<std::int64_t>(epilogue.entries.size()) / channels;
  for (std::int64_t channel = 0; channel < channels; ++channel)
    to.first[channel] = channel * length - epilogue.first[static_cast<std::size_t>(channel)];
}

void fill(PackedEpilogue& to, const Piecewise& epilogue, std::int64_t channels, std::int64_t) {
  to.kind = EpilogueKind::pieces;
  const std::int64_t padded = whole_chunks(channels);
  const auto count = static_cast<std::int64_t>(epilogue.entries.size()) / channels;
  to.thresholds = Aligned<std::int32_t>(padded * most_pieces);
  to.piece_codes = Aligned<std::uint8_t>(padded * most_pieces);
  std::fill_n(to.thresholds.data(), to.thresholds.size(), std::numeric_limits<std::int32_t>::max());
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const auto starts = epilogue.starts.subspan(static_cast<std::size_t>(channel * (count - 1)),
                                                static_cast<std::size_t>(count - 1));
    const auto entries = epilogue.entries.subspan(static_cast<std::size_t>(channel * count),
                                                  static_cast<std::size_t>(count));
    std::copy(starts.begin(), starts.end(), &to.thresholds[channel * most_pieces]);
    std::uint8_t* const codes = &to.piece_codes[channel * most_pieces];
    // The last piece has no end: a sum may have to be less than the largest after folding.
    std::fill(std::copy(entries.begin(), entries.end(), codes), codes + most_pieces,
              entries.back());
  }
}

void fill_steps(PackedEpilogue& to, const auto& epilogue, std::int64_t channels) {
  to.gains = per_channel(epilogue.scales, channels);
  for (const Step& step : epilogue.steps) {
    to.operands.push_back(per_channel(step.operands, channels));
    to.steps.push_back({step.kind(), to.operands.back().data()});
  }
}

void fill(PackedEpilogue& to, const Arithmetic& epilogue, std::int64_t channels, std::int64_t) {
  to.kind = EpilogueKind::arithmetic;
  fill_steps(to, epilogue, channels);
}

void fill(PackedEpilogue& to, const Rounded& epilogue, std::int64_t channels, std::int64_t) {
  to.kind = EpilogueKind::rounded;
  fill_steps(to, epilogue, channels);
  to.shift = static_cast<std::int32_t>(epilogue.shift);
}

void fill(PackedEpilogue& to, const Scaled& epilogue, std::int64_t channels, std::int64_t levels) {
  fill(to, ScaledSteps(epilogue, levels).epilogue(), channels, levels);
}

std::int32_t& threshold_of(const PackedEpilogue& epilogue, std::int64_t channel, std::int64_t i,
                           std::int64_t count) {
  return epilogue.kind == EpilogueKind::many_thresholds ? epilogue.thresholds[channel * 256 + i]
         : epilogue.kind == EpilogueKind::pieces
             ? epilogue.thresholds[channel * most_pieces + i]
             : epilogue.thresholds[(channel / panel_channels * count + i) * panel_channels +
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

void check_saturation(PackedEpilogue& epilogue, std::int64_t channels, std::int64_t levels) {
  const bool has_lines = epilogue.kind == EpilogueKind::rounded_lines;
  if (levels != 256 || (!has_lines && epilogue.kind != EpilogueKind::affine)) return;
  // Sums are below 2^31, and results below 2^31 with the shift, which is at most 2^20.
  constexpr float most_gain = 0.25f, most_offset = 0x1p29f;
  const Aligned<float>& gains = has_lines ? epilogue.slopes : epilogue.gains;
  for (std::int64_t channel = 0; channel < gains.size(); ++channel)
    if (!(std::abs(gains[channel]) <= most_gain) ||
        !(std::abs(epilogue.offsets[channel]) <= most_offset))
      return;
  for (std::int64_t channel = 0; channel < channels && has_lines; ++channel) {
    const bool is_replayed = epilogue.limits[channel] < 0;
    if (!is_replayed && (epilogue.bottoms[channel] != 0 || epilogue.tops[channel] != 255)) return;
  }
  epilogue.saturates = true;
}

void pack_steps(PackedEpilogue& epilogue, std::int64_t channels, std::int64_t levels,
                std::int64_t most_bytes) {
  if (epilogue.kind != EpilogueKind::many_thresholds) return;
  const std::int64_t padded = epilogue.thresholds.size() / 256;
  const auto division = [&](std::int64_t channel, std::int64_t buckets) {
    return Division(epilogue.thresholds.data() + channel * 256, levels - 1, buckets);
  };
  const auto fits = [&](std::int64_t buckets) {
    for (std::int64_t channel = 0; channel < channels; ++channel)
      if (!division(channel, buckets).is_fine()) return false;
    return padded * buckets * 4 <= most_bytes;
  };
  const std::int64_t buckets = fits(bucket_count) ? bucket_count : 2 * bucket_count;
  if (buckets > bucket_count && !fits(buckets)) return;
  epilogue.packed = {Aligned<std::int32_t>(padded * buckets), static_cast<int>(buckets)};
  for (Aligned<std::int32_t>* array :
       {&epilogue.buckets.lows, &epilogue.buckets.highs, &epilogue.buckets.shifts})
    *array = Aligned<std::int32_t>(padded);
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const Division own = division(channel, buckets);
    epilogue.buckets.lows[channel] = static_cast<std::int32_t>(own.low);
    epilogue.buckets.highs[channel] = static_cast<std::int32_t>(own.low + own.span());
    epilogue.buckets.shifts[channel] = static_cast<std::int32_t>(own.shift);
    own.fill(epilogue.packed.entries.data() + channel / panel_channels * panel_channels * buckets +
                 channel % panel_channels,
             buckets);
  }
  epilogue.thresholds = {};
  epilogue.kind = EpilogueKind::packed_steps;
}

PackedEpilogue pack_epilogue(const Epilogue& epilogue, std::int64_t channels, std::int64_t levels,
                             std::int64_t most_bytes) {
  // A scalar operand of a step is expanded to one per channel.
  const auto steps = std::visit(
      [](const auto& record) -> std::size_t {
        if constexpr (requires { record.steps; }) return record.steps.size();
        return 0;
      },
      epilogue);
  constexpr std::int64_t operand = sizeof(float);
  need_room(static_cast<std::int64_t>(steps) * whole_chunks(channels) * operand, most_bytes);
  const bool has_thresholds =
      std::holds_alternative<Thresholds>(epilogue) || std::holds_alternative<Scaled>(epilogue);
  if (has_thresholds && levels > few_levels)  // rows of thresholds and of buckets
    need_room(whole_chunks(channels) * (256 * 4 + bucket_count), most_bytes);
  if (std::holds_alternative<Piecewise>(epilogue))  // rows of starts and codes
    need_room(whole_chunks(channels) * most_pieces * 5, most_bytes);
  PackedEpilogue state;
  std::visit([&](const auto& record) { fill(state, record, channels, levels); }, epilogue);
  return state;
}

void add_steps(PackedEpilogue& epilogue, const std::vector<FloatStep>& steps, std::int64_t channels,
               std::int64_t most_bytes) {
  constexpr std::int64_t operand = sizeof(float);
  need_room(static_cast<std::int64_t>(steps.size()) * whole_chunks(channels) * operand, most_bytes);
  int arrays = 0;
  for (const FloatStep& step : steps) {
    if (step.has_array) {
      epilogue.steps.push_back({step.operation, nullptr, arrays++, step.one_channel});
      continue;
    }
    epilogue.operands.push_back(per_channel(step.constants, channels));
    epilogue.steps.push_back({step.operation, epilogue.operands.back().data()});
  }
}

EpilogueBlock make_epilogue_block(const PackedEpilogue& epilogue, Coding coding,
                                  std::int64_t levels) {
  EpilogueBlock block;  // uninitialized: zeroing takes longer than a small epilogue
  block.coding = coding;
  block.levels = static_cast<int>(levels);
  block.shift = epilogue.shift;
  block.saturates = epilogue.saturates;
  block.entries = epilogue.entries.data();
  block.steps = epilogue.steps.data();
  block.step_count = static_cast<int>(epilogue.steps.size());
  return block;
}

void set_chunk(EpilogueBlock& block, const PackedEpilogue& epilogue, std::int64_t channel) {
  block.first_channel = channel;
  const bool has_pieces = epilogue.kind == EpilogueKind::pieces ||
                          epilogue.kind == EpilogueKind::packed_pieces ||
                          epilogue.kind == EpilogueKind::curved_pieces;
  const std::int64_t thresholds = has_pieces                           ? most_pieces
                                  : has_many_thresholds(epilogue.kind) ? 256
                                                                       : block.levels - 1;
  block.thresholds = epilogue.thresholds.from(channel * thresholds);
  block.gains = epilogue.gains.from(channel);
  block.offsets = epilogue.offsets.from(channel);
  block.slopes = epilogue.slopes.from(channel);
  block.limits = epilogue.limits.from(channel);
  block.bottoms = epilogue.bottoms.from(channel), block.tops = epilogue.tops.from(channel);
  block.lows = epilogue.lows.from(channel), block.highs = epilogue.highs.from(channel);
  const Buckets& buckets = epilogue.buckets;
  block.bucket_codes = buckets.codes.from(channel * bucket_count);
  block.bucket_lows = buckets.lows.from(channel);
  block.bucket_highs = buckets.highs.from(channel);
  block.bucket_shifts = buckets.shifts.from(channel), block.bucket_steps = buckets.steps;
  block.packed_steps = epilogue.packed.entries.from(channel * epilogue.packed.count);
  block.packed_count = epilogue.packed.count;
  block.piece_codes = epilogue.piece_codes.from(channel * most_pieces);
  if (epilogue.kind == EpilogueKind::packed_pieces)
    block.piece_panels = &epilogue.piece_panels[static_cast<std::size_t>(channel / panel_channels)];
  block.side_buckets = epilogue.side_buckets;
  if (epilogue.kind == EpilogueKind::curved_pieces)
    block.curve_panels = &epilogue.curve.panels[static_cast<std::size_t>(channel / panel_channels)];
  block.curve = epilogue.curve.coefficients;
  block.first = epilogue.first.from(channel);
}

void fold_into_thresholds(PackedEpilogue& epilogue, std::int64_t channel, std::int64_t count,
                          std::int64_t scale, std::int64_t constant) {
  constexpr std::int64_t never = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t always = std::numeric_limits<std::int32_t>::min();
  for (std::int64_t i = 0; i < count; ++i) {
    std::int32_t& threshold = threshold_of(epilogue, channel, i, count);
    const std::int64_t rest = threshold - constant;
    // For a negative scale: -sum >= t is ~sum >= t - 1.
    const std::int64_t own = scale > 0   ? quotient_up(rest, scale)
                             : scale < 0 ? quotient_up(rest, -scale) - 1
                             : rest > 0  ? never
                                         : always;
    threshold = static_cast<std::int32_t>(std::clamp(own, always, never));
  }
}

void make_buckets(PackedEpilogue& epilogue, std::int64_t channels, std::int64_t levels) {
  if (!has_many_thresholds(epilogue.kind)) return;
  // Each step is as expensive as one of the eight steps of a search by halving.
  constexpr int most_steps = 4;
  const std::int64_t padded = epilogue.thresholds.size() / 256;
  Buckets buckets;
  // A gather of bytes reads three more.
  buckets.codes = Aligned<std::uint8_t>(padded * bucket_count + 4);
  for (Aligned<std::int32_t>* array : {&buckets.lows, &buckets.highs, &buckets.shifts})
    *array = Aligned<std::int32_t>(padded);
  for (std::int64_t channel = 0; channel < channels; ++channel) {
    const int steps =
        fill_buckets(epilogue.thresholds.data() + channel * 256, levels - 1,
                     buckets.codes.data() + channel * bucket_count, buckets.lows[channel],
                     buckets.highs[channel], buckets.shifts[channel]);
    buckets.steps = std::max(buckets.steps, steps);
    if (buckets.steps > most_steps) return;
  }
  epilogue.buckets = std::move(buckets);
}

void fit_lines(PackedEpilogue& epilogue, std::int64_t channels, std::int64_t levels) {
  if (epilogue.kind != EpilogueKind::many_thresholds) return;
  const std::int64_t padded = epilogue.thresholds.size() / 256;
  PackedEpilogue lined;
  for (Aligned<float>* array :
       {&lined.gains, &lined.offsets, &lined.limits, &lined.bottoms, &lined.tops})
    *array = Aligned<float>(padded);
  lined.lows = Aligned<std::int32_t>(padded), lined.highs = Aligned<std::int32_t>(padded);
  std::int64_t without = 0;
  for (std::int64_t channel = 0; channel < padded; ++channel) {
    const std::int32_t* const thresholds = epilogue.thresholds.data() + channel * 256;
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
  lined.kind = EpilogueKind::lines;
  lined.thresholds = std::move(epilogue.thresholds), lined.buckets = std::move(epilogue.buckets);
  epilogue = std::move(lined);
}

}  // namespace anybit::lowbit
