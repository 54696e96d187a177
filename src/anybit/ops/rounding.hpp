// SPDX-License-Identifier: Apache-2.0
// The seven rounding modes for one element. A zero result carries the operand's sign; NaN and
// infinities pass. All of it is straight-line code that vectorizes.
#pragma once

#include <cctype>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "types.hpp"

namespace anybit {

enum class RoundingMode : std::uint8_t { round, ceil, floor, up, down, half_up, half_down };
inline constexpr int rounding_modes = 7;

inline constexpr std::string_view rounding_mode_names[] = {"ROUND", "CEIL",    "FLOOR",    "UP",
                                                           "DOWN",  "HALF_UP", "HALF_DOWN"};

constexpr std::string_view name_of(RoundingMode mode) {
  return rounding_mode_names[static_cast<int>(mode)];
}

// y rounded to an integer. The thread must round to nearest even (see floating_point.hpp).
template <RoundingMode mode, class T>
[[gnu::always_inline]] inline T round_to_integer(T y) {
  if constexpr (mode == RoundingMode::round) return std::nearbyint(y);
  if constexpr (mode == RoundingMode::ceil) return std::ceil(y);
  if constexpr (mode == RoundingMode::floor) return std::floor(y);
  if constexpr (mode == RoundingMode::down) return std::trunc(y);
  const T magnitude = std::abs(y);
  if constexpr (mode == RoundingMode::up) return std::copysign(std::ceil(magnitude), y);
  // floor(|y| + 0.5) would be wrong at 0.49999997 and above 2^23. With the float below 0.5 the sum
  // reaches the next integer exactly from the tie on: n + 1 - 2^-25 is rounded to n + 1.
  constexpr T below_half = T(0.5) - std::numeric_limits<T>::epsilon() / 4;
  if constexpr (mode == RoundingMode::half_up)
    return std::copysign(std::trunc(magnitude + below_half), y);
  // ceil(|y| - 0.5) is right but where the difference is rounded down: there |y| is an integer.
  const T whole = std::trunc(magnitude);
  const T nearest = std::ceil(magnitude - T(0.5));
  return std::copysign(nearest > whole ? nearest : whole, y);
}

inline bool equals_ignoring_case(std::string_view text, std::string_view upper) {
  if (text.size() != upper.size()) return false;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (std::toupper(static_cast<unsigned char>(text[i])) != upper[i]) return false;
  return true;
}

inline void parse(std::string_view text, RoundingMode& mode) {
  for (int i = 0; i < rounding_modes; ++i)
    if (equals_ignoring_case(text, rounding_mode_names[i])) {
      mode = static_cast<RoundingMode>(i);
      return;
    }
  if (equals_ignoring_case(text, "HALF_EVEN")) {
    mode = RoundingMode::round;
    return;
  }
  std::string known;
  for (const std::string_view name : rounding_mode_names) known.append(name).append(", ");
  known.append("HALF_EVEN");
  const bool brevitas = equals_ignoring_case(text, "ROUND_TO_ZERO");
  throw Error(Error::Kind::value, "rounding_mode must be one of " + known + ", got " +
                                      quoted(text) +
                                      (brevitas ? "; Brevitas's ROUND_TO_ZERO is DOWN" : ""));
}

}  // namespace anybit
