// SPDX-License-Identifier: Apache-2.0
// Scales and zero-points that follow from the largest magnitudes of the numbers they quantize.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "elements.hpp"

namespace anybit::lowbit {

inline float compute_scale(const ScaleConstants& at, const Magnitudes& magnitudes) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float width = at.asymmetric ? magnitudes.above + magnitudes.below
                                    : std::max(magnitudes.above, magnitudes.below);
  if (width == infinity) return infinity;
  return std::min(std::max(width, at.least) / at.steps, at.most);
}

// Returns the integer nearest to y within bounds, 0 with the sign +; NaN becomes the lowest.
inline float round_within(float y, float lowest, float highest) {
  return std::nearbyint(y > lowest ? std::min(y, highest) : lowest) + 0.0f;
}

inline float compute_zero(const Magnitudes& magnitudes, float scale, float lowest, float highest) {
  return round_within(lowest - -magnitudes.below / scale, lowest, highest);
}

}  // namespace anybit::lowbit
