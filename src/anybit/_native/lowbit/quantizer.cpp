// SPDX-License-Identifier: Apache-2.0
#include "quantizer.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace anybit::lowbit {

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// Up to this number, thresholds are compared one by one.
constexpr int counted_levels = 8;

// Computes what the loops in elements.cpp compute.
float inside(const Levels& levels, float x) {
  const float highest = levels.lowest + static_cast<float>(levels.levels - 1);
  const bool divides = levels.way == Levels::Way::divide;
  const float y = divides ? x / levels.gain : x * levels.gain + levels.offset;
  return std::clamp(y, levels.lowest, highest);
}

float guess(const Levels& levels, float x) {
  return std::nearbyint(inside(levels, x)) - levels.lowest;
}

// Distance to an integer below which a guess is exact. The guess is non-decreasing in x: bounds
// that hold at and just before all thresholds hold between them.
float limit_of(const Levels& levels) {
  double off = 0;
  for (int k = 1; k < levels.levels; ++k) {
    const double middle = static_cast<double>(levels.lowest) + k - 0.5;
    const float threshold = levels.thresholds[k];
    off = std::max(off, middle - static_cast<double>(inside(levels, threshold)));
    off = std::max(
        off, static_cast<double>(inside(levels, std::nextafter(threshold, -infinity))) - middle);
  }
  return std::nextafter(static_cast<float>(0.5 - off), -infinity);
}

// Counts the thresholds that x reaches.
int reached(const Levels& levels, float x) {
  const float* const first = levels.thresholds + 1;
  return static_cast<int>(std::upper_bound(first, first + levels.levels - 1, x) - first);
}

// Computes the largest error of the guess. Guess and index are non-decreasing in x, and the index
// changes at thresholds only: checking both sides of all thresholds covers all x.
int largest_error(const Levels& levels) {
  if (!std::isfinite(levels.gain) || !(levels.gain > 0) || !std::isfinite(levels.offset))
    return most_levels;
  int largest = 0;
  const auto look = [&](float x) {
    largest = std::max(largest, std::abs(static_cast<int>(guess(levels, x)) - reached(levels, x)));
  };
  look(-infinity);
  look(infinity);
  for (int k = 1; k < levels.levels && largest < 2; ++k) {  // larger errors are not usable
    look(levels.thresholds[k]);
    look(std::nextafter(levels.thresholds[k], -infinity));
  }
  return largest;
}

}  // namespace

Quantizer::Quantizer(const Quantize& at, const Tensor& target) {
  const auto channels = static_cast<std::size_t>(target.channels);
  const int levels = static_cast<int>(target.levels);
  const auto count = static_cast<std::size_t>(levels - 1);
  const bool own_thresholds = at.thresholds.size() > count;
  const std::size_t sets = own_thresholds ? channels : 1;
  const std::size_t room = std::bit_ceil(static_cast<std::size_t>(levels)) + 1;
  thresholds_.assign(sets * room, std::numeric_limits<float>::quiet_NaN());
  for (std::size_t i = 0; i < sets; ++i) {
    float* const own = thresholds_.data() + i * room;
    own[0] = -infinity;
    std::copy_n(at.thresholds.begin() + static_cast<std::ptrdiff_t>(i * count), count, own + 1);
    Levels& made = levels_.emplace_back();
    made.levels = levels;
    made.thresholds = own;
    choose_way(made, static_cast<float>(target.lowest));
  }
  if (at.directions.size() > 1) levels_.resize(channels, levels_[0]);
  for (std::size_t i = 0; i < levels_.size(); ++i)
    levels_[i].falls = at.directions[at.directions.size() > 1 ? i : 0] < 0;
}

void Quantizer::choose_way(Levels& levels, float lowest_code) {
  levels.way = Levels::Way::search;
  if (levels.levels <= counted_levels) {
    levels.way = Levels::Way::count;
    return;
  }
  const float first = levels.thresholds[1], last = levels.thresholds[levels.levels - 1];
  const float scale = (last - first) / static_cast<float>(levels.levels - 2);
  // If thresholds are halfway between multiples of a scale, the offset is 0, which saves a
  // rounding.
  const float lowest = std::nearbyint(first / scale - 0.5f);
  if (!(std::abs(lowest) < 1048576) || !(std::abs(lowest_code) < 1048576)) return;
  Levels best = levels;
  int least_error = 2;
  const auto look = [&](Levels::Way way, float gain, float offset, float from) {
    Levels candidate = levels;
    candidate.way = way, candidate.gain = gain;
    candidate.offset = offset, candidate.lowest = from;
    const int error = largest_error(candidate);
    if (error >= least_error || (error > 0 && way == Levels::Way::divide)) return;
    least_error = error;
    best = candidate;
    if (error > 0) best.way = Levels::Way::correct, best.limit = limit_of(candidate);
  };
  // Try scales near the estimate, and reciprocals: the file has a rounded scale.
  float up = scale, down = scale;
  for (int step = 0; step < 6 && least_error > 0; ++step) {
    for (const float near : {up, down}) {
      look(Levels::Way::affine, 1 / near, 0, lowest);
      look(Levels::Way::divide, near, 0, lowest);
      // Images are mapped to codes by a factor and an offset.
      look(Levels::Way::affine, 1 / near, lowest_code - lowest, lowest_code);
    }
    up = std::nextafter(up, infinity), down = std::nextafter(down, 0.0f);
  }
  look(Levels::Way::affine, 1 / scale, 0.5f - first / scale, 0);
  levels = best;
}

std::string_view Quantizer::way() const {
  constexpr std::string_view names[] = {"compare", "affine", "divide", "affine, corrected",
                                        "search"};
  return names[static_cast<int>(levels_[0].way)];
}

}  // namespace anybit::lowbit
