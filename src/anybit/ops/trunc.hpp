// SPDX-License-Identifier: Apache-2.0
// trunc for one element; trunc.py is the specification.
#pragma once

#include <array>

#include "integer_range.hpp"
#include "rounding.hpp"

namespace anybit {

struct Trunc {
  static constexpr std::string_view name = "trunc";
  static constexpr OnnxName onnx{"Trunc", "qonnx.custom_op.general", "TruncQuant"};
  static constexpr std::array inputs = {
      Input{"x", floating}, Input{"scale"},
      Input{"zeropt"},      Input{"in_bitwidth", positive_integer},
      Input{"out_scale"},   Input{"out_bitwidth", positive_integer}};

  struct Attributes {
    bool is_signed = true;
    bool narrow = false;
    RoundingMode rounding_mode = RoundingMode::floor;
    constexpr void visit(auto&& visitor) {
      visitor("signed", is_signed);
      visitor("narrow", narrow);
      visitor("rounding_mode", rounding_mode);
    }
  };

  static constexpr int variants = rounding_modes;
  static constexpr int preparations = 1;
  static int variant(const Attributes& attributes) {
    return static_cast<int>(attributes.rounding_mode);
  }

  template <int, class T>
  [[gnu::always_inline]] static std::array<T, 8> prepare(const Attributes& attributes, T scale,
                                                         T zeropt, double, T out_scale,
                                                         double out_bitwidth) {
    const auto range = integer_range<T>(out_bitwidth, attributes.is_signed, attributes.narrow);
    const Factor<T> factor(out_scale / scale);
    return {scale,        zeropt,        factor.reciprocal,     factor.rest,
            range.lowest, range.highest, zeropt / factor.value, out_scale};
  }

  // y / t is y * (1 / t): exact for a power of two, in two factors, since 1 / t may overflow.
  template <int variant, class T>
  [[gnu::always_inline]] static T apply(T x, T scale, T zeropt, T reciprocal, T rest, T lowest,
                                        T highest, T out_zeropt, T out_scale) {
    T y = round_to_integer<RoundingMode::round>(x / scale + zeropt);
    y = (y * reciprocal) * rest;
    y = y > highest ? highest : y;  // comparisons, not min and max: NaN passes
    y = y < lowest ? lowest : y;
    return (round_to_integer<RoundingMode{variant}>(y) - out_zeropt) * out_scale;
  }

  static constexpr std::array<std::string_view, 4> differentiable = {"x", "scale", "zeropt",
                                                                     "out_scale"};
  // The number of leading ones that are the same in all rounding modes.
  static constexpr std::size_t common_partials = 3;

  template <int, class T>
  [[gnu::always_inline]] static std::array<T, 9> prepare_partials(const Attributes& attributes,
                                                                  T scale, T zeropt, double,
                                                                  T out_scale,
                                                                  double out_bitwidth) {
    const auto range = integer_range<T>(out_bitwidth, attributes.is_signed, attributes.narrow);
    const Factor<T> factor(out_scale / scale);
    return {scale,
            zeropt,
            factor.reciprocal,
            factor.rest,
            range.lowest,
            range.highest,
            zeropt / factor.value,
            out_scale / scale / factor.value,
            -out_scale / factor.value};
  }

  template <int variant, class T>
  [[gnu::always_inline]] static std::array<T, 4> partials(T x, T scale, T zeropt, T reciprocal,
                                                          T rest, T lowest, T highest, T out_zeropt,
                                                          T slope, T by_zeropt) {
    const T quotient = x / scale;
    T y = round_to_integer<RoundingMode::round>(quotient + zeropt);
    y = (y * reciprocal) * rest;
    const bool above = y > highest;
    const bool clipped = above || y < lowest;
    const T code = round_to_integer<RoundingMode{variant}>(y);
    const T bound = above ? highest : lowest;
    return {clipped ? T(0) : slope, clipped ? T(0) : -quotient * slope, clipped ? by_zeropt : T(0),
            (clipped ? bound : code) - out_zeropt};
  }

 private:
  // The power of two nearest to a ratio, and its reciprocal in two factors; NaN unless the ratio
  // is finite and > 0.
  template <class T>
  struct Factor {
    T value, reciprocal, rest;
    [[gnu::always_inline]] explicit Factor(T ratio) {
      const int exponent = floor_log2(ratio);
      // The largest float below sqrt(2), in float32 and in float64.
      const bool above_half = times_power_of_two(ratio, -exponent) > T(1.4142135623730949);
      const int nearest = exponent + (above_half ? 1 : 0);
      value = power_of_two<T>(nearest);
      reciprocal = power_of_two<T>(-(nearest / 2));
      rest = value <= std::numeric_limits<T>::max() ? power_of_two<T>(nearest / 2 - nearest) : T(0);
      if (!(ratio > T(0) && ratio <= std::numeric_limits<T>::max()))
        value = reciprocal = rest = std::numeric_limits<T>::quiet_NaN();
    }
  };
};

}  // namespace anybit
