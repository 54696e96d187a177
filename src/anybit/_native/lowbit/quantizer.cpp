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

// x / gain in three fused steps, up to the last threshold; NaN where the first step overflows.
float divided(const ThresholdMap& map, float x) {
  const float bounded = std::min(x, map.thresholds[map.index_count - 1]);
  const float near = bounded * map.reciprocal;
  return std::fma(std::fma(-near, map.gain, bounded), map.reciprocal, near);
}

// Computes what the loops in elements.cpp compute.
float inside(const ThresholdMap& map, float x) {
  const float highest = map.lowest + static_cast<float>(map.index_count - 1);
  const bool divides = map.method == ThresholdMap::Method::divide;
  float y = x * map.gain;
  if (divides) y = map.reciprocal > 0 ? divided(map, x) : x / map.gain;
  y += map.offset;
  return y > map.lowest ? std::min(y, highest) : map.lowest;
}

float guess(const ThresholdMap& map, float x) {
  return std::nearbyint(inside(map, x)) - map.lowest;
}

// Distance to an integer below which a guess is exact. The guess is non-decreasing in x: bounds
// that hold at and just before all thresholds hold between them.
float limit_of(const ThresholdMap& map) {
  double off = 0;
  for (int k = 1; k < map.index_count; ++k) {
    const double middle = static_cast<double>(map.lowest) + k - 0.5;
    const float threshold = map.thresholds[k];
    off = std::max(off, middle - static_cast<double>(inside(map, threshold)));
    off = std::max(off,
                   static_cast<double>(inside(map, std::nextafter(threshold, -infinity))) - middle);
  }
  return std::nextafter(static_cast<float>(0.5 - off), -infinity);
}

// Counts the thresholds that x reaches.
int reached(const ThresholdMap& map, float x) {
  const float* const first = map.thresholds + 1;
  return static_cast<int>(std::upper_bound(first, first + map.index_count - 1, x) - first);
}

// Computes the largest error of the guess. Guess and index are non-decreasing in x, and the index
// changes at thresholds only: checking both sides of all thresholds covers all x.
int largest_error(const ThresholdMap& map) {
  if (!std::isfinite(map.gain) || !(map.gain > 0) || !std::isfinite(map.offset)) return most_levels;
  int largest = 0;
  const auto look = [&](float x) {
    largest = std::max(largest, std::abs(static_cast<int>(guess(map, x)) - reached(map, x)));
  };
  look(-infinity);
  look(infinity);
  for (int k = 1; k < map.index_count && largest < 2; ++k) {  // larger errors are not usable
    look(map.thresholds[k]);
    look(std::nextafter(map.thresholds[k], -infinity));
  }
  return largest;
}

// Returns 1 / gain if fused steps divide as the division does; else 0. Their result is within 2^-22
// units in the last place of x / gain, rounded once. Quotients of different numbers are further
// apart, half a unit: so it is non-decreasing in x, and both sides of all thresholds cover all x.
// Scales are such that what underflows is much smaller than a step.
float reciprocal_of(const ThresholdMap& map) {
  if (!(map.gain >= 0x1p-60f && map.gain <= 0x1p60f)) return 0;
  ThresholdMap candidate = map;
  candidate.reciprocal = 1 / map.gain;
  return largest_error(candidate) == 0 ? candidate.reciprocal : 0;
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
    ThresholdMap& made = maps_.emplace_back();
    made.index_count = levels;
    made.thresholds = own;
    choose_method(made, static_cast<float>(target.lowest));
  }
  if (at.directions.size() > 1) maps_.resize(channels, maps_[0]);
  for (std::size_t i = 0; i < maps_.size(); ++i)
    maps_[i].decreasing = at.directions[at.directions.size() > 1 ? i : 0] < 0;
}

void Quantizer::choose_method(ThresholdMap& map, float lowest_code) {
  map.method = ThresholdMap::Method::search;
  if (map.index_count <= counted_levels) {
    map.method = ThresholdMap::Method::count;
    return;
  }
  const float first = map.thresholds[1], last = map.thresholds[map.index_count - 1];
  const float scale = (last - first) / static_cast<float>(map.index_count - 2);
  // If thresholds are halfway between multiples of a scale, the offset is 0, which saves a
  // rounding.
  const float lowest = std::nearbyint(first / scale - 0.5f);
  if (!(std::abs(lowest) < 1048576) || !(std::abs(lowest_code) < 1048576)) return;
  ThresholdMap best = map;
  int least_error = 2;
  const auto look = [&](ThresholdMap::Method method, float gain, float offset, float from) {
    ThresholdMap candidate = map;
    candidate.method = method, candidate.gain = gain;
    candidate.offset = offset, candidate.lowest = from;
    const int error = largest_error(candidate);
    if (error >= least_error || (error > 0 && method == ThresholdMap::Method::divide)) return;
    least_error = error;
    best = candidate;
    if (error > 0) best.method = ThresholdMap::Method::correct, best.limit = limit_of(candidate);
  };
  // Try scales near the estimate, and reciprocals: the file has a rounded scale.
  float up = scale, down = scale;
  for (int step = 0; step < 6 && least_error > 0; ++step) {
    for (const float near : {up, down}) {
      look(ThresholdMap::Method::affine, 1 / near, 0, lowest);
      look(ThresholdMap::Method::divide, near, 0, lowest);
      // Images are mapped to codes by a factor and an offset.
      look(ThresholdMap::Method::affine, 1 / near, lowest_code - lowest, lowest_code);
      // QONNX adds the zero-point to a rounded quotient: codes are unsigned or signed.
      for (const float from : {0.0f, -static_cast<float>(map.index_count / 2)})
        look(ThresholdMap::Method::divide, near, from - lowest, from);
    }
    up = std::nextafter(up, infinity), down = std::nextafter(down, 0.0f);
  }
  look(ThresholdMap::Method::affine, 1 / scale, 0.5f - first / scale, 0);
  if (best.method == ThresholdMap::Method::divide) best.reciprocal = reciprocal_of(best);
  map = best;
}

std::string_view Quantizer::method() const {
  constexpr std::string_view names[] = {"compare", "affine", "divide", "affine, corrected",
                                        "search"};
  return names[static_cast<int>(maps_[0].method)];
}

}  // namespace anybit::lowbit
