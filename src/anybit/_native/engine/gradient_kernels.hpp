// SPDX-License-Identifier: Apache-2.0
// The loops of the backward pass, compiled once per instruction set like those of kernels.hpp.
#pragma once

#include "kernels.hpp"

namespace anybit {

// No operator has more differentiable inputs besides x.
inline constexpr int max_products = 3;

// For rows of x and of the upstream gradient: out[i] <- x's gradient, and, for each parameter
// that is asked for, a float64 sum += the product of the gradient with its partial derivative. One
// set of prepared parameters has one sum per row, sums[p][row * step]; those that vary by element
// have as many, sums[p][row * step + i]. Where a partial derivative is 0 the product is, whatever
// the gradient. out may be x or the gradient. The order of addition depends on `length` alone.
struct GradientRows {
  Rows rows;
  const void* gradient;
  std::int64_t gradient_step = 0;  // bytes from one row to the next
  std::array<double*, max_products> sums{};
  std::int64_t sums_step = 0;
};
using Differentiate = void (*)(const GradientRows& rows);

// For which inputs gradients are computed: x, x and the next one, or all.
inline constexpr int gradient_scopes = 3;

// By variant. The second index: 0 one set of prepared parameters for all elements, 1 one for each.
struct GradientKernel {
  Preparation preparation;
  std::array<std::array<const Differentiate*, 2>, gradient_scopes> loops;
};

// The family of the backward loops.
struct GradientSet {
  static constexpr Level serving(Level level) { return of_loops(level); }

  GradientKernel (*kernel)(int operator_index, bool float64);
};

}  // namespace anybit
