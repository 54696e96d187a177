// SPDX-License-Identifier: Apache-2.0
// dynamic_dequantize for one element; dynamic_dequantize.py is the specification.
#pragma once

#include <array>

#include "dynamic_quantize.hpp"

namespace anybit {

struct DynamicDequantize {
  static constexpr std::string_view name = "dynamic_dequantize";
  static constexpr OnnxName onnx{"DynamicDequantize", "anybit"};
  static constexpr std::array inputs = {Input{"src", byte}, Input{"scales", float32_only},
                                        Input{"zps", small_integer, true, 0}};

  struct Attributes {
    Granularity granularity = Granularity::per_tensor;
    std::int64_t axis = default_axis;
    constexpr void visit(auto&& visitor) {
      visitor("qtype", granularity);
      visitor("axis", axis);
    }
  };

  static ElementType result_type(const Attributes&) { return ElementType::float32; }

  static int parameter_axis(const Attributes& attributes, int rank) {
    return axis_of(attributes.granularity, attributes.axis, rank);
  }

  static constexpr int variants = 1;
  static int variant(const Attributes&) { return 0; }

  // The zero-point in two parts: rounded to T, and what rounding left, which is at most 64. The
  // first difference in `apply` is exact, so that the second one rounds x - zero_point once.
  template <int variant, class T>
  [[gnu::always_inline]] static std::array<T, 3> prepare(const Attributes&, T scale,
                                                         double zero_point) {
    const T rounded = static_cast<T>(zero_point);
    return {scale, rounded, static_cast<T>(zero_point - static_cast<double>(rounded))};
  }

  template <int variant, class T>
  [[gnu::always_inline]] static T apply(T x, T scale, T rounded, T rest) {
    return ((x - rest) - rounded) * scale;
  }

  static constexpr std::array<std::string_view, 1> differentiable = {"scales"};

  template <int, class T>
  [[gnu::always_inline]] static std::array<T, 2> partials(T x, T, T rounded, T rest) {
    return {T(0), (x - rest) - rounded};
  }
};

}  // namespace anybit
