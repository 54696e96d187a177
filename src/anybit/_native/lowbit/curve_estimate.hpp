// SPDX-License-Identifier: Apache-2.0
// Estimate of a function that the channels of a piecewise constant epilogue share, such as SiLU.
#pragma once
#include <array>
#include <limits>
#include <vector>

#include "curve_shape.hpp"
#include "piece_changes.hpp"

namespace anybit::lowbit {

// Ties between the indices b and b + 1, where an increasing curve has the number b, and a
// decreasing one b + 256.
inline constexpr int falling = 256, most_ties = 512;

// A place where the curve has a tie, as a sum of one channel.
struct Crossing {
  double sum = 0;
  int tie = 0;
};

// A channel has the index scale * (f(place) - zero) + zero, where f is the curve of all, and
// sum = gain * place + offset.
struct CurveChannel {
  std::vector<PieceChange> changes;
  int first = 0;                    // index of the smallest sums
  bool falls = false;               // whether sums are negated
  std::vector<Crossing> crossings;  // ascending sums, after negation
  double scale = 1, gain = 0, offset = 0;
  double error = std::numeric_limits<double>::infinity();  // of the line: 1 - r^2

  bool is_placed() const { return gain > 0; }
  double place(double sum) const { return (sum - offset) / gain; }
};

// Estimates the curve and the places of the channels from the starts of their pieces.
struct CurveEstimate {
  std::vector<CurveChannel> channels;
  CurveShape curve;
  int zero = 0;

  // False if there is no curve.
  bool fit(const PackedEpilogue& epilogue, std::int64_t channels);
};

}  // namespace anybit::lowbit
