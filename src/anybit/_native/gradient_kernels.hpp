// SPDX-License-Identifier: Apache-2.0
// The loops of the backward pass, compiled once per instruction set like those of kernels.hpp.
#pragma once

#include "kernels.hpp"

namespace anybit {

// No operator has more differentiable inputs besides x.
inline constexpr int max_products = 3;

// For rows of x and of the gradient that arrives: out[i] <- x's gradient, and, if parameters are
// asked for, the product of the gradient with each parameter's partial derivative. Where a partial
// derivative is 0 the product is, whatever arrives. out may be x or the gradient.
struct GradientRows {
  Rows rows;
  const void* gradient;
  std::int64_t gradient_step = 0;  // bytes from one row to the next
  // products[p * plane + row * length + i]; unused where only x's gradient is computed.
  void* products = nullptr;
  std::int64_t products_plane = 0;
};
using Differentiate = void (*)(const GradientRows& rows);

// sums[row * step] += the values of that row, `length` each; in float64 and in an order that
// depends on `length` alone.
using SumRows = void (*)(const void* values, std::int64_t length, std::int64_t rows, double* sums,
                         std::int64_t step);
// sums[row * step + i] += value i of that row.
using AddRows = SumRows;

// By variant. First index: 0 one set of prepared parameters for all elements, 1 one per element.
struct GradientKernel {
  Preparation preparation;
  std::array<const Differentiate*, 2> only_x;
  std::array<const Differentiate*, 2> all;
};

// The second index: 0 float32, 1 float64.
struct GradientSet {
  std::string_view name;
  GradientKernel (*kernel)(int operator_index, bool float64);
  std::array<SumRows, 2> sum;
  std::array<AddRows, 2> add;
};

// The set that goes with `set`.
const GradientSet& gradient_kernels(const KernelSet& set);

}  // namespace anybit
