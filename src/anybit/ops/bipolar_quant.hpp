// SPDX-License-Identifier: Apache-2.0
// bipolar_quant for one element; bipolar_quant.py is the specification.
#pragma once

#include <array>
#include <cmath>

#include "types.hpp"

namespace anybit {

struct BipolarQuant {
  static constexpr std::string_view name = "bipolar_quant";
  static constexpr OnnxName onnx{"BipolarQuant", "qonnx.custom_op.general"};
  static constexpr std::array inputs = {Input{"x", floating}, Input{"scale"}};

  struct Attributes {
    constexpr void visit(auto&&) {}
  };

  static constexpr int variants = 1;
  static int variant(const Attributes&) { return 0; }

  template <int, class T>
  [[gnu::always_inline]] static std::array<T, 1> prepare(const Attributes&, T scale) {
    return {scale};
  }

  template <int, class T>
  [[gnu::always_inline]] static T apply(T x, T scale) {
    return (x >= T(0) ? T(1) : T(-1)) * scale;
  }

  static constexpr std::array<std::string_view, 2> differentiable = {"x", "scale"};

  template <int, class T>
  [[gnu::always_inline]] static std::array<T, 2> partials(T x, T scale) {
    return {std::abs(x) <= std::abs(scale) ? T(1) : T(0), x >= T(0) ? T(1) : T(-1)};
  }
};

}  // namespace anybit
