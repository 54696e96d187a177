// SPDX-License-Identifier: Apache-2.0
#include "choice.hpp"

#include <algorithm>
#include <optional>

namespace anybit::lowbit {

namespace {

// Cycles for 32 values of K and the 16 channels of a panel, where data is near: measured on
// processors of each level, or added up from their instructions.
struct Cost {
  double dot;   // dot product of bytes
  double pair;  // one plane of weights and one of activations
};

constexpr Cost cost_of(Level level) {
  switch (level) {
    case Level::baseline:
      return {40, 11};
#ifdef ANYBIT_ARM_KERNELS
    case Level::dotprod:
      return {16, 11};
#endif
    case Level::avx2:
      return {20, 5.5};
    case Level::avxvnni:
      return {8, 5.5};
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

// How many pairs of planes are counted.
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

std::optional<Scheme> bit_scheme(const ProductTask& task, const WeightForm& form, Coding coding) {
  const std::int64_t levels = task.source.levels;
  if (levels > most_levels_of(coding)) return std::nullopt;
  // The words of a group must be its own.
  if (task.product->groups > 1 && inner_channels(task) % 32 != 0) return std::nullopt;
  const bool planes = coding == Coding::planes;
  // The number of signs is one per pixel, not one per group.
  if (planes && levels == 3 && form.bipolar && task.product->groups == 1) return Scheme::signs12;
  if (form.bipolar) return planes ? Scheme::xor12 : Scheme::xor11;
  if (form.ternary) return planes ? Scheme::ternary12 : Scheme::ternary11;
  if (form.two_bits) return planes ? Scheme::and22 : Scheme::and21;
  return std::nullopt;
}

bool is_depthwise(const ProductTask& task) {
  return task.product->groups > 1 && inner_channels(task) == 1 &&
         task.target.channels == task.source.channels;
}

Scheme dot_scheme(const ProductTask& task, const WeightForm& form, Level level) {
  const ProductKernels& kernels = kernels_of<ProductKernels>(level);
  if (is_depthwise(task)) {
    // Fewer instructions than those of four taps take sums that never leave 16 bits.
    const Window& window = task.product->window;
    const bool is_short = window.kernel_height * window.kernel_width <= short_terms(task, form);
    const bool has_four = kernels.sums[static_cast<std::size_t>(Scheme::depthwise4)] != nullptr;
    return has_four && !is_short ? Scheme::depthwise4 : Scheme::depthwise;
  }
  const Scheme scheme = form.set.size() <= 4    ? Scheme::dot2
                        : form.set.size() <= 16 ? Scheme::dot4
                                                : Scheme::dot8;
  const auto largest = static_cast<int>(task.source.levels - 1);
  const bool exact = kernels.sums[static_cast<std::size_t>(scheme)] != nullptr &&
                     kernels.dot_is_exact(largest, form.largest);
  return exact ? scheme : Scheme::wide8;
}

}  // namespace

std::int64_t short_terms(const ProductTask& task, const WeightForm& form) {
  return 32767 / std::max<std::int64_t>(1, (task.source.levels - 1) * form.largest);
}

Scheme scheme_for(const ProductTask& task, const WeightForm& form, Coding coding, Level level) {
  if (coding == Coding::bytes) return dot_scheme(task, form, level);
  const std::optional<Scheme> scheme = bit_scheme(task, form, coding);
  if (!scheme)
    throw Error(Error::Kind::value, "no kernel takes these weights and bits; use bytes instead");
  return *scheme;
}

Coding coding_for(const ProductTask& task, const WeightForm& form, Level level) {
  const Coding coding = task.source.levels <= 2 ? Coding::bits : Coding::planes;
  const std::optional<Scheme> scheme = bit_scheme(task, form, coding);
  if (!scheme || is_depthwise(task)) return Coding::bytes;
  const std::int64_t pixels = task.target.height * task.target.width;
  // Tiles want many pixels.
  const bool tiles = level == Level::amx && pixels >= 16;
  const Cost cost = cost_of(level == Level::amx && !tiles ? Level::avx512vpopcnt : level);
  const std::int64_t inner = inner_channels(task);
  const auto words = static_cast<double>((inner + 31) / 32);
  // A single pixel keeps fewer instructions under way, and unpacks its weights for itself alone.
  const bool single = pixels == 1;
  const double bits = cost.pair * pairs_of(*scheme) * words;
  // Weights become bytes and go to the tiles once for all pixels: worth so many of them.
  const double beside = tiles ? 64.0 / static_cast<double>(pixels) : single ? 1 : 0;
  const double dots = cost.dot * static_cast<double>(inner) / 32 * (1 + beside);
  return bits <= dots ? coding : Coding::bytes;
}

}  // namespace anybit::lowbit
