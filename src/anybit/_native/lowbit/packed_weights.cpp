// SPDX-License-Identifier: Apache-2.0
#include "packed_weights.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "damage.hpp"
#include "rows.hpp"

namespace anybit::lowbit {

Weights::Weights(const Product& product, std::int64_t channels_, std::int64_t source_channels)
    : channels(channels_),
      taps(product.window.kernel_height * product.window.kernel_width),
      inner(source_channels / product.groups) {
  values.resize(static_cast<std::size_t>(channels * taps * inner));
  std::size_t place = 0;
  for (std::int8_t& value : values) {
    std::size_t index = 0;
    for (std::int64_t bit = 0; bit < product.weight_bits; ++bit, ++place)
      index |= static_cast<std::size_t>(product.weights[place / 8] >> place % 8 & 1) << bit;
    value = static_cast<std::int8_t>(product.values[index]);
  }
}

WeightForm::WeightForm(const Weights& weights) {
  bool seen[256] = {};
  const std::int64_t count = weights.taps * weights.inner;
  units.resize(static_cast<std::size_t>(weights.channels));
  for (std::int64_t channel = 0; channel < weights.channels; ++channel) {
    const std::int8_t* const own = weights.of(channel);
    int lowest = 0, highest = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      seen[own[i] + 128] = true;
      lowest = std::min<int>(lowest, own[i]);
      highest = std::max<int>(highest, own[i]);
    }
    const int unit = std::max(highest, -lowest);
    units[static_cast<std::size_t>(channel)] = unit;
    largest = std::max(largest, unit);
    for (std::int64_t i = 0; i < count; ++i) {
      const int magnitude = std::abs(own[i]);
      bipolar = bipolar && magnitude == unit;
      ternary = ternary && (magnitude == unit || magnitude == 0);
    }
  }
  seen[128] = true;
  for (int value = -128; value < 128; ++value)
    if (seen[value + 128]) set.push_back(static_cast<std::int8_t>(value));
  // 0, v, -2 v and -v for one v.
  const int unit = -set.front() / 2;
  for (const int value : set)
    two_bits = two_bits && unit > 0 &&
               (value == 0 || value == unit || value == -2 * unit || value == -unit);
}

bool WeightForm::has_two() const {
  const bool is_binary =
      bipolar && largest > 0 &&
      std::all_of(units.begin(), units.end(), [this](int unit) { return unit == largest; });
  return is_binary || set.size() <= 2;
}

namespace {

// Cycles per 32 values of the reduction axis and panel of 16 channels, with data in L1, measured by
// benchmarks/product_costs.py. Rows of levels that it has not run on are from older measurements,
// or estimated from instruction throughput.
struct Cost {
  double dot;      // dot product of bytes
  double pair;     // one plane of weights and one of activations
  double row = 0;  // rows selected by 8 nibbles
};

constexpr Cost cost_of(Level level) {
  switch (level) {
    case Level::baseline:
      return {15, 6.8, 6.2};
#ifdef ANYBIT_ARM_KERNELS
    case Level::dotprod:
      return {16, 11};
#endif
    case Level::avx2:
      return {6.4, 3.1, 2.4};
    case Level::avxvnni:
      return {8, 5.5, 3.6};
    case Level::avx512:
      return {12, 4};
    case Level::avx512vnni:
      return {4, 4};
    case Level::avx512vpopcnt:
      return {4, 1.5};
    case Level::amx:
      return {1.2, 1.5};
  }
  return {4, 4};
}

// Number of plane pairs that a scheme counts.
constexpr int pairs_of(Scheme scheme) {
  switch (scheme) {
    case Scheme::xor12:
    case Scheme::ternary12:
    case Scheme::and21:
      return 2;
    case Scheme::and22:
      return 4;
    default:
      return 1;
  }
}

std::int64_t inner_channels(const ProductTask& task) {
  return task.source.channels / task.product->groups;
}

// Whether a level has a scheme that selects rows, and it is exact.
bool has_rows(Scheme scheme, const ProductTask& task, const WeightForm& form, Level level) {
  // Few channels leave lanes unused.
  if (task.product->groups > 1 || task.target.channels <= panel_channels) return false;
  const Window& window = task.product->window;
  const auto& sums = kernels_of<ProductKernels>(level).sums;
  return sums[static_cast<std::size_t>(scheme)] != nullptr &&
         task.source.channels * window.kernel_height * window.kernel_width <=
             most_row_terms(task.source.levels, form);
}

std::optional<Scheme> bit_scheme(const ProductTask& task, const WeightForm& form, Coding coding,
                                 Level level) {
  const std::int64_t levels = task.source.levels;
  if (levels > most_levels_of(coding)) return std::nullopt;
  // Groups must not share words.
  if (task.product->groups > 1 && inner_channels(task) % 32 != 0) return std::nullopt;
  if (coding == Coding::nibbles)
    return (form.ternary || form.two_bits) && has_rows(Scheme::rows22, task, form, level)
               ? std::optional(Scheme::rows22)
               : std::nullopt;
  const bool planes = coding == Coding::planes;
  // The count of signs is per pixel, not per group.
  if (planes && levels == 3 && form.bipolar && task.product->groups == 1) return Scheme::signs12;
  if (!planes && form.bipolar && has_rows(Scheme::rows11, task, form, level)) return Scheme::rows11;
  if (form.bipolar) return planes ? Scheme::xor12 : Scheme::xor11;
  if (form.ternary) return planes ? Scheme::ternary12 : Scheme::ternary11;
  if (form.two_bits) return planes ? Scheme::and22 : Scheme::and21;
  return std::nullopt;
}

bool is_depthwise(const ProductTask& task) {
  return task.product->groups > 1 && inner_channels(task) == 1 &&
         task.target.channels == task.source.channels;
}

// Values per run of the reduction axis, rounded up to whole steps.
std::int64_t padded_run(const ProductTask& task, Scheme scheme) {
  const Window& window = task.product->window;
  const bool joined = task.product->groups == 1 && window.dilation_width == 1;
  const std::int64_t run = inner_channels(task) * (joined ? window.kernel_width : 1);
  const std::int64_t step = values_per_step(scheme);
  return (run + step - 1) / step * step;
}

// Whether weights of less than 8 bits are stored as bytes, because unpacking them takes longer than
// reading them: from the L1 or L2 cache, or for many pixels at a time.
bool prefers_bytes(const ProductTask& task, const ProductKernels& kernels) {
  constexpr std::int64_t near_bytes = 128 * 1024, most_bytes = 4 * 1024 * 1024, many_pixels = 16;
  const Window& window = task.product->window;
  const std::int64_t bytes =
      task.target.channels * inner_channels(task) * window.kernel_height * window.kernel_width;
  const bool many = task.target.height * task.target.width >= many_pixels;
  return kernels.prefers_bytes && bytes <= (many ? most_bytes : near_bytes);
}

// Returns `scheme`, or one with fewer bits for a single pixel times weights that exceed the L2
// cache: reading them takes longer than unpacking.
Scheme narrow_scheme(const ProductTask& task, const WeightForm& form, const ProductKernels& kernels,
                     Scheme scheme) {
  constexpr std::int64_t least_weights = 4 * 1024 * 1024;
  const std::int64_t inner = inner_channels(task);
  const bool is_far = task.target.height * task.target.width == 1 && task.product->groups == 1 &&
                      task.target.channels * inner >= least_weights;
  // A table of two weights may lack the 0 of padding.
  const bool pads = inner % (kernels.dot_bytes > 32 ? kernels.dot_bytes : 32) != 0;
  Scheme narrow = scheme;
  if (scheme == Scheme::dot4 && form.set.size() <= 8) narrow = Scheme::dot3;
  if (scheme == Scheme::dot2 && form.has_two() && !pads) narrow = Scheme::dot1;
  return is_far && kernels.sums[static_cast<std::size_t>(narrow)] != nullptr ? narrow : scheme;
}

Scheme dot_scheme(const ProductTask& task, const WeightForm& form, Level level) {
  const ProductKernels& kernels = kernels_of<ProductKernels>(level);
  if (is_depthwise(task)) {
    // Sums that fit 16 bits need fewer instructions than the four-tap scheme.
    const Window& window = task.product->window;
    const bool is_short =
        window.kernel_height * window.kernel_width <= terms_in_16_bits(task, form);
    const bool has_four = kernels.sums[static_cast<std::size_t>(Scheme::depthwise4)] != nullptr;
    return has_four && !is_short ? Scheme::depthwise4 : Scheme::depthwise;
  }
  Scheme scheme = form.set.size() <= 4    ? Scheme::dot2
                  : form.set.size() <= 16 ? Scheme::dot4
                                          : Scheme::dot8;
  // Bytes of short runs, as of images with three channels, are padded less.
  const bool pads_less = padded_run(task, Scheme::dot8) * 4 <= padded_run(task, scheme) * 3;
  if (pads_less || prefers_bytes(task, kernels)) scheme = Scheme::dot8;
  else scheme = narrow_scheme(task, form, kernels, scheme);
  const auto largest = static_cast<int>(task.source.levels - 1);
  const bool exact = kernels.sums[static_cast<std::size_t>(scheme)] != nullptr &&
                     kernels.dot_is_exact(largest, form.largest);
  return exact ? scheme : Scheme::wide8;
}

}  // namespace

std::int64_t terms_in_16_bits(const ProductTask& task, const WeightForm& form) {
  return 32767 / std::max<std::int64_t>(1, (task.source.levels - 1) * form.largest);
}

Scheme select_scheme(const ProductTask& task, const WeightForm& form, Coding coding, Level level) {
  if (coding == Coding::bytes) return dot_scheme(task, form, level);
  const std::optional<Scheme> scheme = bit_scheme(task, form, coding, level);
  if (!scheme)
    throw Error(Error::Kind::value, "no kernel takes these weights and bits; use bytes instead");
  return *scheme;
}

Coding select_coding(const ProductTask& task, const WeightForm& form, Level level) {
  if (is_depthwise(task)) return Coding::bytes;
  const std::int64_t pixels = task.target.height * task.target.width;
  // Tiles pay off for many pixels only.
  const bool tiles = level == Level::amx && pixels >= 16;
  const Cost cost = cost_of(level == Level::amx && !tiles ? Level::avx512vpopcnt : level);
  const std::int64_t inner = inner_channels(task);
  const auto words = static_cast<double>((inner + 31) / 32);
  // A single pixel has less instruction parallelism, and does not share the unpacking of weights.
  const bool single = pixels == 1;
  // Weights are unpacked and loaded into tiles once for all pixels: worth 64 pixels.
  const double unpacking = tiles ? 64.0 / static_cast<double>(pixels) : single ? 1 : 0;
  double least = cost.dot * static_cast<double>(inner) / 32 * (1 + unpacking);
  Coding fastest = Coding::bytes;
  for (const Coding coding : {Coding::bits, Coding::planes, Coding::nibbles}) {
    if ((coding == Coding::bits) != (task.source.levels <= 2)) continue;
    const std::optional<Scheme> scheme = bit_scheme(task, form, coding, level);
    if (!scheme) continue;
    const double steps = is_rows(*scheme) ? cost.row * static_cast<double>(word_bytes(coding)) / 4
                                          : cost.pair * pairs_of(*scheme);
    if (steps * words > least) continue;
    least = steps * words, fastest = coding;
  }
  return fastest;
}

Aligned<std::byte> room_for(std::int64_t bytes, std::int64_t most) {
  need_room(bytes, most);
  return Aligned<std::byte>(bytes);
}

namespace {

// Packs weights as bytes, or as indices of 4 to 1 bits. A vector is [16 channels][4 bytes]; a byte
// holds the indices of all phases. With 3 bits the lower two are in two vectors, the upper ones in
// a third.
class DotPacker {
 public:
  DotPacker(Scheme scheme, const WeightForm& form, PackedWeights& to)
      : scheme_(scheme), bits_(bits_of_index(scheme)) {
    for (std::size_t i = 0; i < 256; ++i) indices_[i] = static_cast<std::uint8_t>(i - 128);
    if (bits_ < 8) {
      std::vector<std::int8_t> values = form.set;
      if (scheme == Scheme::dot1 && values.size() == 3) values = {values[0], values[2]};
      indices_[128] = 0;  // of channels that do not exist
      for (std::size_t i = 0; i < values.size(); ++i) {
        to.values[i] = values[i];
        indices_[values[i] + 128] = static_cast<std::uint8_t>(i);
      }
    }
    // What is beside the bits of an index may then be anything.
    for (std::size_t i = std::size_t{1} << bits_; i < 16; ++i)
      to.values[i] = to.values[i - (std::size_t{1} << bits_)];
  }
  // k counts within a run and may be behind its end, where weights are 0.
  void put(std::byte* run, int lane, std::int64_t k, int weight) const {
    const int per_step = values_per_step(scheme_), index = indices_[weight + 128];
    const std::int64_t phase = k % per_step / 4;
    std::byte* const step =
        run + k / per_step * bytes_per_step(scheme_) + lane * std::int64_t{4} + k % 4;
    const auto add = [&](std::int64_t vector, int bits, std::int64_t place) {
      step[vector * 64] |= static_cast<std::byte>(bits << place);
    };
    if (bits_ != 3) return add(0, index, phase * bits_);
    add(phase / 4, index & 3, phase % 4 * 2);
    add(2, index >> 2, phase);
  }

 private:
  const Scheme scheme_;
  const int bits_;
  std::uint8_t indices_[256];
};

// Bit planes: a step is [plane][16 channels][32 bits].
int planes_of(Scheme scheme) {
  switch (scheme) {
    case Scheme::xor11:
    case Scheme::xor12:
    case Scheme::signs12:
      return 1;
    default:
      return 2;
  }
}

std::uint32_t plane_bits(Scheme scheme, int weight, int unit, int two_bit_unit) {
  switch (scheme) {
    case Scheme::ternary11:
    case Scheme::ternary12:
      return (weight != 0 ? 1u : 0u) | (weight > 0 ? 2u : 0u);
    case Scheme::and21:
    case Scheme::and22:
      return static_cast<std::uint32_t>(weight / two_bit_unit) & 3;
    default:
      return unit > 0 && weight > 0 ? 1 : 0;
  }
}

void pack_bits(Scheme scheme, const Weights& weights, const WeightForm& form, const Runs& runs,
               const std::vector<PanelChannels>& panels, std::int64_t most_bytes,
               PackedWeights& to) {
  const int planes = planes_of(scheme), unit = -form.set.front() / 2;
  const std::int64_t words = (weights.inner + 31) / 32;
  to.steps = static_cast<int>(runs.taps * words);
  to.panel = runs.count * to.steps * planes * 64;
  to.bytes = room_for(to.panel * static_cast<std::int64_t>(panels.size()), most_bytes);
  for (std::size_t p = 0; p < panels.size(); ++p)
    for (int lane = 0; lane < panels[p].count; ++lane) {
      const std::int64_t channel = panels[p].first + lane;
      for (std::int64_t tap = 0; tap < weights.taps; ++tap)
        for (std::int64_t c = 0; c < weights.inner; ++c) {
          const std::uint32_t bits =
              plane_bits(scheme, weights.of(channel, tap)[c],
                         form.units[static_cast<std::size_t>(channel)], unit);
          for (int plane = 0; plane < planes; ++plane) {
            std::byte* const at = to.bytes.data() + static_cast<std::int64_t>(p) * to.panel +
                                  ((tap * words + c / 32) * planes + plane) * 64 + lane * 4;
            store_word(at, word_at(at) | (bits >> plane & 1) << c % 32);
          }
        }
    }
}

void pack_dots(Scheme scheme, const Weights& weights, const WeightForm& form, const Runs& runs,
               const std::vector<PanelChannels>& panels, int dot_bytes, std::int64_t most_bytes,
               PackedWeights& to) {
  const DotPacker packer(scheme, form, to);
  const std::int64_t length = runs.taps * weights.inner, k_per_step = values_per_step(scheme);
  const std::int64_t whole =
      std::max<std::int64_t>(k_per_step, scheme == Scheme::wide8 ? 4 : dot_bytes);
  to.steps = static_cast<int>((length + whole - 1) / whole * (whole / k_per_step));
  const std::int64_t run_bytes = std::int64_t{to.steps} * bytes_per_step(scheme);
  to.panel = runs.count * run_bytes;
  to.bytes = room_for(to.panel * static_cast<std::int64_t>(panels.size()), most_bytes);
  for (std::size_t p = 0; p < panels.size(); ++p)
    for (int lane = 0; lane < panel_channels; ++lane)
      for (std::int64_t run = 0; run < runs.count; ++run) {
        std::byte* const at =
            to.bytes.data() + static_cast<std::int64_t>(p) * to.panel + run * run_bytes;
        const bool present = lane < panels[p].count;
        for (std::int64_t k = 0; k < to.steps * k_per_step; ++k)
          packer.put(
              at, lane, k,
              present && k < length ? weights.of(panels[p].first + lane)[run * length + k] : 0);
      }
}

void pack_depthwise(const Weights& weights, const std::vector<PanelChannels>& panels,
                    std::int64_t most_bytes, PackedWeights& to) {
  // Pairs of panels are interleaved tap by tap; only the last chunk may have an odd number of
  // panels.
  to.panel = weights.taps * panel_channels * 2;
  const std::int64_t pairs = (static_cast<std::int64_t>(panels.size()) + 1) / 2;
  to.bytes = room_for(to.panel * 2 * pairs, most_bytes);
  for (std::size_t p = 0; p < panels.size(); ++p)
    for (int lane = 0; lane < panels[p].count; ++lane)
      for (std::int64_t tap = 0; tap < weights.taps; ++tap) {
        const std::int16_t weight = *weights.of(panels[p].first + lane, tap);
        const auto pair = static_cast<std::int64_t>(p / 2);
        const std::int64_t place =
            (pair * weights.taps + tap) * 2 + static_cast<std::int64_t>(p % 2);
        std::memcpy(to.bytes.data() + (place * panel_channels + lane) * 2, &weight, sizeof weight);
      }
}

// Place of a weight of 16 or 8 bits in a pair of taps, of channel `lane` of 32 and tap 0.
constexpr std::int64_t place_in_pair(std::int64_t lane, bool in_bytes) {
  const std::int64_t half = lane / 16, within = lane % 16;
  const std::int64_t together = in_bytes ? 8 : 4;  // channels of half a register
  return ((within / together * 2 + half) * together + within % together) * 2;
}

// Two panels after another; a padding tap has weights of 0.
void pack_tap_pairs(const Weights& weights, const std::vector<PanelChannels>& panels, bool in_bytes,
                    std::int64_t most_bytes, PackedWeights& to) {
  const std::int64_t pairs = (weights.taps + 1) / 2, weight_bytes = in_bytes ? 1 : 2;
  const std::int64_t pair_bytes = 2 * 2 * panel_channels * weight_bytes;
  to.panel = pairs * pair_bytes / 2;
  to.bytes =
      room_for(to.panel * 2 * ((static_cast<std::int64_t>(panels.size()) + 1) / 2), most_bytes);
  for (std::size_t p = 0; p < panels.size(); ++p)
    for (int lane = 0; lane < panels[p].count; ++lane)
      for (std::int64_t tap = 0; tap < weights.taps; ++tap) {
        const std::int16_t weight = *weights.of(panels[p].first + lane, tap);
        const std::int64_t channel = static_cast<std::int64_t>(p % 2) * panel_channels + lane;
        std::byte* const pair = to.bytes.data() + static_cast<std::int64_t>(p / 2) * 2 * to.panel +
                                tap / 2 * pair_bytes;
        std::memcpy(pair + (place_in_pair(channel, in_bytes) + tap % 2) * weight_bytes, &weight,
                    static_cast<std::size_t>(weight_bytes));
      }
}

// Some panels after others, see kernels/depthwise_dots.hpp; padding taps have weights of 0.
void pack_taps(const Weights& weights, const std::vector<PanelChannels>& panels, int most_together,
               std::int64_t most_bytes, PackedWeights& to) {
  constexpr std::size_t chunk_panels = chunk_channels / panel_channels;
  const std::int64_t steps = (weights.taps + taps_together - 1) / taps_together;
  to.panel = steps * panel_channels * taps_together;
  const auto padded = (panels.size() + chunk_panels - 1) / chunk_panels * chunk_panels;
  to.bytes = room_for(to.panel * static_cast<std::int64_t>(padded), most_bytes);
  for (std::size_t first = 0; first < panels.size();) {
    const std::size_t end =
        std::min(panels.size(), first / chunk_panels * chunk_panels + chunk_panels);
    const int together = panels_of_taps(static_cast<std::int64_t>(end - first), most_together);
    for (std::size_t p = first; p < std::min(end, first + static_cast<std::size_t>(together)); ++p)
      for (int lane = 0; lane < panels[p].count; ++lane)
        for (std::int64_t tap = 0; tap < weights.taps; ++tap) {
          const std::int64_t four = tap / taps_together * 4 + lane / 4;
          const std::int64_t place =
              (four * together + static_cast<std::int64_t>(p - first)) * 4 + lane % 4;
          to.bytes[static_cast<std::int64_t>(first) * to.panel + place * taps_together +
                   tap % taps_together] =
              static_cast<std::byte>(*weights.of(panels[p].first + lane, tap));
        }
    first += static_cast<std::size_t>(together);
  }
}

}  // namespace

namespace {

constexpr std::int64_t step_bytes = 64;

// Whether the sum of two adjacent products exceeds 16 bits for some indices.
bool may_saturate(const std::byte* step, std::int64_t largest_index) {
  for (std::int64_t i = 0; i < step_bytes; i += 2) {
    std::int64_t positive = 0, negative = 0;
    for (const std::int64_t j : {i, i + 1}) {
      const auto weight = static_cast<std::int8_t>(step[j]);
      (weight > 0 ? positive : negative) += weight;
    }
    if (positive * largest_index > 32767 || negative * largest_index < -32768) return true;
  }
  return false;
}

}  // namespace

bool split_pairs(PackedWeights& weights, std::int64_t panels,
                 const std::vector<std::ptrdiff_t>& segments, const ProductTask& task) {
  const std::int64_t steps = static_cast<std::int64_t>(segments.size()) * weights.steps;
  const std::int64_t largest_index = task.source.levels - 1;
  // With more extra steps, products of 16-bit operands are as fast. A single pixel is bound by
  // reading the weights.
  const bool single = task.target.height * task.target.width == 1;
  const std::int64_t most_split = single ? steps / 8 : steps * 2 / 5;
  std::vector<std::vector<std::int64_t>> split(static_cast<std::size_t>(panels));
  std::int64_t most = 0;
  for (std::int64_t panel = 0; panel < panels; ++panel) {
    auto& own = split[static_cast<std::size_t>(panel)];
    for (std::int64_t step = 0; step < steps; ++step)
      if (may_saturate(weights.bytes.data() + panel * weights.panel + step * step_bytes,
                       largest_index))
        own.push_back(step);
    most = std::max(most, static_cast<std::int64_t>(own.size()));
    if (most > most_split) return false;
  }
  const std::int64_t table = (most + 1) * 8;
  const std::int64_t panel_bytes =
      (steps + most) * step_bytes + (table + step_bytes - 1) / step_bytes * step_bytes;
  PackedWeights to;
  to.panel = panel_bytes, to.steps = weights.steps, to.most_extras = static_cast<int>(most);
  to.bytes = room_for(panel_bytes * panels, task.most_bytes);
  for (std::int64_t panel = 0; panel < panels; ++panel) {
    std::byte* const start = to.bytes.data() + panel * panel_bytes;
    std::memcpy(start, weights.bytes.data() + panel * weights.panel,
                static_cast<std::size_t>(steps * step_bytes));
    std::byte *extra = start + steps * step_bytes, *entry = extra + most * step_bytes;
    const auto put = [](std::byte* at, std::int64_t number) {
      std::memcpy(at, &number, sizeof number);
    };
    const auto& own = split[static_cast<std::size_t>(panel)];
    put(entry + most * 8, static_cast<std::int64_t>(own.size()));
    for (const std::int64_t step : own) {
      for (std::int64_t i = 0; i < step_bytes; ++i, ++extra) {
        std::byte& stays = start[step * step_bytes + i];
        const auto weight = static_cast<std::int8_t>(stays);
        const auto half = static_cast<std::int8_t>(weight / 2);
        stays = static_cast<std::byte>(half);
        *extra = static_cast<std::byte>(weight - half);
      }
      put(entry,
          segments[static_cast<std::size_t>(step / weights.steps)] + step % weights.steps * 4);
      entry += 8;
    }
  }
  weights = std::move(to);
  return true;
}

void widen_weights(PackedWeights& weights, std::int64_t most_bytes) {
  const Aligned<std::byte> from = std::move(weights.bytes);
  weights.bytes = room_for(from.size() * 2, most_bytes), weights.panel *= 2;
  for (std::int64_t step = 0; step < from.size(); step += step_bytes)
    for (std::int64_t i = 0; i < step_bytes; ++i) {
      const std::int16_t weight = static_cast<std::int8_t>(from[step + i]);
      const std::int64_t place = i % 2 * step_bytes + i / 2 * 2;
      std::memcpy(weights.bytes.data() + step * 2 + place, &weight, sizeof weight);
    }
}

PackedWeights pack_weights(Scheme scheme, const Weights& weights, const WeightForm& form,
                           const Runs& runs, const std::vector<PanelChannels>& panels,
                           const Packing& packing, std::int64_t most_bytes) {
  PackedWeights to;
  if (scheme == Scheme::depthwise && packing.tap_order == TapOrder::single)
    pack_depthwise(weights, panels, most_bytes, to);
  else if (scheme == Scheme::depthwise)
    pack_tap_pairs(weights, panels, packing.tap_order == TapOrder::byte_pairs, most_bytes, to);
  else if (scheme == Scheme::depthwise4)
    pack_taps(weights, panels, packing.tap_panels, most_bytes, to);
  else if (is_dot(scheme))
    pack_dots(scheme, weights, form, runs, panels, packing.dot_bytes, most_bytes, to);
  else if (is_rows(scheme)) pack_rows(scheme, weights, form, runs, panels, most_bytes, to);
  else pack_bits(scheme, weights, form, runs, panels, most_bytes, to);
  return to;
}

}  // namespace anybit::lowbit
