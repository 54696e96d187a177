// SPDX-License-Identifier: Apache-2.0
// float_quant for one element; float_quant.py is the specification.
#pragma once

#include <array>
#include <span>

#include "powers.hpp"
#include "rounding.hpp"

namespace anybit {

struct FloatQuant {
  static constexpr std::string_view name = "float_quant";
  static constexpr OnnxName onnx{"FloatQuant", "qonnx.custom_op.general"};
  static constexpr std::array inputs = {
      Input{"x", floating},
      Input{"scale"},
      Input{"exponent_bitwidth", positive_integer},
      Input{"mantissa_bitwidth", non_negative_integer},
      Input{"exponent_bias", integer},
      Input{"max_val", non_negative, true, std::numeric_limits<double>::infinity()}};

  struct Attributes {
    bool is_signed = true;
    RoundingMode rounding_mode = RoundingMode::round;
    // Facts about the format for other tools: they do not change the result.
    bool has_infinity = false;
    bool has_nan = false;
    bool has_subnormal = true;
    bool saturation = true;
    // Each with its name, its ONNX name where that differs or has rivals, and those rivals.
    constexpr void visit(auto&& visitor) {
      visitor("signed", is_signed);
      visitor("rounding_mode", rounding_mode);
      visitor("has_infinity", has_infinity, "has_infinity", "has_inf");
      visitor("has_nan", has_nan);
      visitor("has_subnormal", has_subnormal);
      visitor("saturation", saturation);
    }
  };

  // Every rounding mode twice. In `usual` formats all steps and their reciprocals are normal
  // numbers of T, and the finest step is at most 1, so that y / step cannot underflow. The others
  // are computed by integer exponents.
  static constexpr int variants = 2 * rounding_modes;
  static constexpr int preparations = 2;
  // Whose gradients may take some more time than they must.
  template <int variant>
  static constexpr bool seldom = variant >= rounding_modes;
  template <class T>
  static int variant(const Attributes& attributes, std::span<const Range, 6> ranges) {
    using L = Layout<T>;
    const Range mantissa = ranges[3];
    const Range bias = ranges[4];
    const bool usual = mantissa.lowest >= 1 && mantissa.highest <= L::mantissa &&
                       bias.highest + mantissa.highest <= L::bias &&
                       bias.lowest + mantissa.lowest >= 1;
    return static_cast<int>(attributes.rounding_mode) + (usual ? 0 : rounding_modes);
  }

  template <int variant, class T>
  [[gnu::always_inline]] static std::array<T, 5> prepare(const Attributes& attributes, T scale,
                                                         double exponent_bitwidth,
                                                         double mantissa_bitwidth,
                                                         double exponent_bias, T max_val) {
    T largest = full_range<T>(exponent_bitwidth, mantissa_bitwidth, exponent_bias);
    largest = max_val < largest ? max_val : largest;
    const T lowest = attributes.is_signed ? -largest : T(0);
    const double finest = 1 - exponent_bias - mantissa_bitwidth;
    // The grid, by two numbers: for usual formats the smallest normal number and the unit in the
    // last place of 1, for others the exponent of the finest step and the mantissa bits.
    if constexpr (variant < rounding_modes)
      return {scale, power_of_two<T>(1 - exponent_bias), power_of_two<T>(-mantissa_bitwidth),
              lowest, largest};
    else
      return {scale, static_cast<T>(clamped(finest, -9999., 9999.)),
              static_cast<T>(clamped(mantissa_bitwidth, 0., plenty)), lowest, largest};
  }

  template <int variant, class T>
  [[gnu::always_inline]] static T apply(T x, T scale, T grid_start, T grid_digits, T lowest,
                                        T largest) {
    T q = on_grid<variant>(x / scale, grid_start, grid_digits);
    q = q > largest ? largest : q;  // comparisons, not min and max: NaN passes
    q = q < lowest ? lowest : q;
    return q * scale;
  }

  static constexpr std::array<std::string_view, 3> differentiable = {"x", "scale", "max_val"};

  template <int variant, class T>
  [[gnu::always_inline]] static std::array<T, 7> prepare_partials(const Attributes& attributes,
                                                                  T scale, double exponent_bitwidth,
                                                                  double mantissa_bitwidth,
                                                                  double exponent_bias, T max_val) {
    const T full = full_range<T>(exponent_bitwidth, mantissa_bitwidth, exponent_bias);
    const auto columns = prepare<variant>(attributes, scale, exponent_bitwidth, mantissa_bitwidth,
                                          exponent_bias, max_val);
    const T by_limit = max_val < full ? scale : T(0);
    return {columns[0],
            columns[1],
            columns[2],
            columns[3],
            columns[4],
            by_limit,
            attributes.is_signed ? -by_limit : T(0)};
  }

  template <int variant, class T>
  [[gnu::always_inline]] static std::array<T, 3> partials(T x, T scale, T grid_start, T grid_digits,
                                                          T lowest, T largest, T limit_above,
                                                          T limit_below) {
    const T y = x / scale;
    const T q = on_grid<variant>(y, grid_start, grid_digits);
    const bool above = q > largest;
    const bool clipped = above || q < lowest;
    return {clipped ? T(0) : T(1), clipped ? (above ? largest : lowest) : q - y,
            clipped ? (above ? limit_above : limit_below) : T(0)};
  }

 private:
  // The largest value if no code is reserved.
  template <class T>
  [[gnu::always_inline]] static T full_range(double exponent_bitwidth, double mantissa_bitwidth,
                                             double exponent_bias) {
    // In this order the first difference is exact wherever it is small enough to matter.
    const double top = power_of_two<double>(exponent_bitwidth) - exponent_bias - 1;
    const T significand = T(2) - power_of_two<T>(-mantissa_bitwidth);
    return times_power_of_two(significand, static_cast<int>(clamped(top, -9999., 9999.)));
  }

  template <int variant, class T>
  [[gnu::always_inline]] static T on_grid(T y, T grid_start, T grid_digits) {
    constexpr auto mode = RoundingMode{variant % rounding_modes};
    return variant < rounding_modes ? on_usual_grid<mode>(y, grid_start, grid_digits)
                                    : on_any_grid<mode>(y, grid_start, grid_digits);
  }

  // More mantissa bits than any compute type has: a finer grid changes no value.
  static constexpr double plenty = 60;

  template <RoundingMode mode, class T>
  [[gnu::always_inline]] static T on_usual_grid(T y, T smallest_normal, T last_place) {
    using L = Layout<T>;
    using Bits = typename L::Bits;
    constexpr Bits exponent_bits = std::bit_cast<Bits>(std::numeric_limits<T>::infinity());
    constexpr Bits of_reciprocal = static_cast<Bits>(2 * L::bias) << L::mantissa;
    T binade = std::abs(y);
    binade = binade < smallest_normal ? smallest_normal : binade;
    binade = std::bit_cast<T>(std::bit_cast<Bits>(binade) & exponent_bits);
    const T step = binade * last_place;
    // The exponent of 1 / step. For an infinite step it is held at 0, which makes inf * 0 = NaN.
    const Bits reciprocal = of_reciprocal - std::bit_cast<Bits>(step);
    const T per_step = std::bit_cast<T>(reciprocal < 0 ? Bits{0} : reciprocal);
    return round_to_integer<mode>(y * per_step) * step;
  }

  template <RoundingMode mode, class T>
  [[gnu::always_inline]] static T on_any_grid(T y, T finest_step, T mantissa_bitwidth) {
    const int exponent = floor_log2(y);
    const int wanted =
        at_least(exponent - static_cast<int>(mantissa_bitwidth), static_cast<int>(finest_step));
    const int step = at_least(wanted, exponent - static_cast<int>(plenty));
    // Far below the grid the product could underflow to 0, which UP and CEIL must not see.
    const bool far_below = exponent < step - 2 && y != T(0);
    const T steps = far_below ? std::copysign(T(0.25), y) : times_power_of_two(y, -step);
    const T q = times_power_of_two(round_to_integer<mode>(steps), step);
    const bool finite = std::abs(y) <= std::numeric_limits<T>::max();
    return finite ? q : std::numeric_limits<T>::quiet_NaN();
  }
};

}  // namespace anybit
