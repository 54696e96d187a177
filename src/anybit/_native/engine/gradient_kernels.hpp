// SPDX-License-Identifier: Apache-2.0
// Loops of the backward pass, compiled once per ISA level like those of kernels.hpp.
#pragma once

#include "kernels.hpp"

namespace anybit {

// Largest number of differentiable inputs besides x.
inline constexpr int max_products = 3;

// For rows of x and of the upstream gradient: out[i] <- x's gradient; per requested parameter, a
// float64 sum += gradient * partial derivative. Uniform parameters have one sum per row,
// sums[p][row * step]; varying ones one per element, sums[p][row * step + i]. The product with a
// partial derivative of 0 is 0 for any gradient. out may be x or the gradient. The order of
// addition depends only on `length`.
struct GradientRows {
  Rows rows;
  const void* gradient;
  std::int64_t gradient_step = 0;  // bytes from one row to the next
  std::array<double*, max_products> sums{};
  std::int64_t sums_step = 0;
};
using Differentiate = void (*)(const GradientRows& rows);

// Inputs whose gradients are computed: x, x and the next one, or all.
inline constexpr int gradient_scopes = 3;

// By variant. Second index: 0 for uniform, 1 for varying parameters.
struct GradientKernel {
  Preparation preparation;
  std::array<std::array<const Differentiate*, 2>, gradient_scopes> loops;
};

// Kernel family of the backward loops.
struct GradientSet {
  static constexpr Level serving(Level level) { return of_loops(level); }

  GradientKernel (*kernel)(int operator_index, bool float64);
};

}  // namespace anybit
