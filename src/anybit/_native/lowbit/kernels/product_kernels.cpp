// SPDX-License-Identifier: Apache-2.0
// Product kernels, compiled once per ISA level, except levels that only add integer instructions
// (integer_kernels.cpp).
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own headers start some intrinsics from a vector that is undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "_native/lowbit/product_kernels.hpp"

#include "_native/isa/levels.hpp"
#include "depthwise.hpp"
#include "product_sums.hpp"
#include "steps.hpp"
#include "tails.hpp"

namespace {

constexpr ProductKernels all = [] {
  ProductKernels kernels{};
  set_dots(kernels);
  set_short_dots(kernels);
  set_wides(kernels);
  set_bits(kernels);
  sums_of(kernels, Scheme::depthwise) = depthwise;
  kernels.tails = {thresholds, many_thresholds, lines, affine, table, arithmetic, rounded};
  return kernels;
}();

}  // namespace

template <>
const ProductKernels& anybit::compiled<ProductKernels, anybit::Level::ANYBIT_ISA>() {
  return all;
}
