// SPDX-License-Identifier: Apache-2.0
// trunc_v1 for one element; trunc_v1.py is the specification.
#pragma once

#include <array>

#include "powers.hpp"
#include "rounding.hpp"

namespace anybit {

struct TruncV1 {
  static constexpr std::string_view name = "trunc_v1";
  static constexpr OnnxName onnx{"Trunc", "qonnx.custom_op.general", "TruncQuant"};
  static constexpr std::array inputs = {Input{"x", floating}, Input{"scale"}, Input{"zeropt"},
                                        Input{"in_bitwidth", positive_integer},
                                        Input{"out_bitwidth", positive_integer}};

  struct Attributes {
    RoundingMode rounding_mode = RoundingMode::floor;
    constexpr void visit(auto&& visitor) { visitor("rounding_mode", rounding_mode); }
  };

  static constexpr int variants = rounding_modes;
  static constexpr int preparations = 1;
  static int variant(const Attributes& attributes) {
    return static_cast<int>(attributes.rounding_mode);
  }

  template <int, class T>
  [[gnu::always_inline]] static std::array<T, 3> prepare(const Attributes&, T scale, T zeropt,
                                                         double in_bitwidth, double out_bitwidth) {
    return {scale, zeropt, power_of_two<T>(in_bitwidth - out_bitwidth)};
  }

  template <int variant, class T>
  [[gnu::always_inline]] static T apply(T x, T scale, T zeropt, T factor) {
    const T y = round_to_integer<RoundingMode::round>(x / scale + zeropt) / factor;
    return (round_to_integer<RoundingMode{variant}>(y) - zeropt) * scale;
  }

  static constexpr std::array<std::string_view, 3> differentiable = {"x", "scale", "zeropt"};
  // The number of leading ones that are the same in all rounding modes.
  static constexpr std::size_t common_partials = 1;

  template <int, class T>
  [[gnu::always_inline]] static std::array<T, 5> prepare_partials(const Attributes&, T scale,
                                                                  T zeropt, double in_bitwidth,
                                                                  double out_bitwidth) {
    const T factor = power_of_two<T>(in_bitwidth - out_bitwidth);
    return {scale, zeropt, factor, T(1) / factor, scale / factor - scale};
  }

  template <int variant, class T>
  [[gnu::always_inline]] static std::array<T, 3> partials(T x, T scale, T zeropt, T factor, T slope,
                                                          T by_zeropt) {
    const T quotient = x / scale;
    const T y = round_to_integer<RoundingMode::round>(quotient + zeropt) / factor;
    const T codes = round_to_integer<RoundingMode{variant}>(y) - zeropt;
    return {slope, codes - quotient / factor, by_zeropt};
  }
};

}  // namespace anybit
