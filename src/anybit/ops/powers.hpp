// SPDX-License-Identifier: Apache-2.0
// Exact powers of two and exact exponents by the bits of the float.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace anybit {

template <class T>
struct Layout {
  using Bits = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  static constexpr int mantissa = std::numeric_limits<T>::digits - 1;
  static constexpr int bias = std::numeric_limits<T>::max_exponent - 1;
  static constexpr int smallest = 1 - bias - mantissa;  // the exponent of the least subnormal
};

// std::max and std::clamp, inlined without fail: see kernels.cpp.
template <class T>
[[gnu::always_inline]] constexpr T at_least(T value, T lowest) {
  return value < lowest ? lowest : value;
}
template <class T>
[[gnu::always_inline]] inline T clamped(T value, T lowest, T highest) {
  const T above = at_least(value, lowest);
  return above > highest ? highest : above;
}

// 2^exponent for exponents of normal numbers only.
template <class T>
[[gnu::always_inline]] constexpr T normal_power(int exponent) {
  using Bits = typename Layout<T>::Bits;
  return std::bit_cast<T>(static_cast<Bits>(exponent + Layout<T>::bias) << Layout<T>::mantissa);
}

// 2^exponent for any integer: inf above the range of T, 0 below it. Two factors, since a subnormal
// power is the product of two normal ones, and a power out of range overflows or underflows as one.
template <class T>
[[gnu::always_inline]] inline T power_of_two(double exponent) {
  using L = Layout<T>;
  constexpr double lowest = L::smallest - 1, highest = L::bias + 1;
  const int whole = static_cast<int>(clamped(exponent, lowest, highest));
  return normal_power<T>(whole / 2) * normal_power<T>(whole - whole / 2);
}

// The E with 2^E <= |y| < 2^(E+1); very low for 0, above every exponent for inf and NaN.
template <class T>
[[gnu::always_inline]] inline int floor_log2(T y) {
  using L = Layout<T>;
  using Bits = typename L::Bits;
  constexpr int lift = L::mantissa + 1;
  const T magnitude = std::abs(y);
  const bool subnormal = magnitude < std::numeric_limits<T>::min();
  const T normal = subnormal ? magnitude * normal_power<T>(lift) : magnitude;
  const int field = static_cast<int>(std::bit_cast<Bits>(normal) >> L::mantissa);
  return field - L::bias - (subnormal ? lift : 0);
}

// y * 2^exponent, rounded once. Two factors, since 2^exponent alone may leave the range.
template <class T>
[[gnu::always_inline]] inline T times_power_of_two(T y, int exponent) {
  constexpr int widest = Layout<T>::bias;
  const int half = clamped(exponent / 2, 1 - widest, widest);
  const int rest = clamped(exponent - half, 1 - widest, widest);
  return (y * normal_power<T>(half)) * normal_power<T>(rest);
}

}  // namespace anybit
