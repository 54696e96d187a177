// SPDX-License-Identifier: Apache-2.0
// int_quant for one element; int_quant.py is the specification.
#pragma once

#include <array>

#include "integer_range.hpp"
#include "rounding.hpp"

namespace anybit {

struct IntQuant {
  static constexpr std::string_view name = "int_quant";
  static constexpr OnnxName onnx{"IntQuant", "qonnx.custom_op.general", "Quant"};
  static constexpr std::array inputs = {Input{"x", floating}, Input{"scale"}, Input{"zeropt"},
                                        Input{"bitwidth", positive_integer}};

  struct Attributes {
    bool is_signed = true;
    bool narrow = false;
    RoundingMode rounding_mode = RoundingMode::round;
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
  [[gnu::always_inline]] static std::array<T, 4> prepare(const Attributes& attributes, T scale,
                                                         T zeropt, double bitwidth) {
    const auto range = integer_range<T>(bitwidth, attributes.is_signed, attributes.narrow);
    return {scale, zeropt, range.lowest, range.highest};
  }

  template <int variant, class T>
  [[gnu::always_inline]] static T apply(T x, T scale, T zeropt, T lowest, T highest) {
    T y = x / scale + zeropt;
    y = y > highest ? highest : y;  // comparisons, not min and max: NaN passes
    y = y < lowest ? lowest : y;
    y = round_to_integer<RoundingMode{variant}>(y);
    return (y - zeropt) * scale;
  }

  static constexpr std::array<std::string_view, 3> differentiable = {"x", "scale", "zeropt"};
  // The number of leading ones that are the same in all rounding modes.
  static constexpr std::size_t common_partials = 1;

  template <int variant, class T>
  [[gnu::always_inline]] static std::array<T, 3> partials(T x, T scale, T zeropt, T lowest,
                                                          T highest) {
    const T quotient = x / scale;
    const T y = quotient + zeropt;
    const bool above = y > highest;
    const bool below = y < lowest;
    const T bound = (above ? highest : lowest) - zeropt;
    const T error = (round_to_integer<RoundingMode{variant}>(y) - zeropt) - quotient;
    const bool clipped = above || below;
    return {clipped ? T(0) : T(1), clipped ? bound : error, clipped ? -scale : T(0)};
  }
};

}  // namespace anybit
