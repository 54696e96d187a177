// SPDX-License-Identifier: Apache-2.0
// The kernels of products, compiled once per level of instructions.
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own headers start some intrinsics from a vector that is undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "_native/lowbit/product_kernels.hpp"

#include "_native/isa/levels.hpp"
#include "depthwise.hpp"
#include "instructions.hpp"
#include "schemes.hpp"
#include "steps.hpp"
#include "tails.hpp"
#include "tile.hpp"

namespace {

using anybit::lowbit::ProductKernels;
using anybit::lowbit::Scheme;

// The low plane of planes says "zero".
void less_signs(const SumBlock& at, std::int32_t* addends) {
  for (int pixel = 0; pixel < at.count; ++pixel) {
    std::int32_t zeros = 0;
    for (int segment = 0; segment < at.segment_count; ++segment)
      for (int i = 0; i < at.steps; ++i)
        zeros += __builtin_popcount(
            anybit::lowbit::word_at(at.pixels[pixel] + at.segments[segment] + i * 8));
    addends[pixel] = zeros - at.segment_count * at.steps * 32;
  }
}

constexpr ProductKernels all = [] {
  ProductKernels kernels{};
  kernels.dot_is_exact = dot_is_exact;
  const auto set = [&](Scheme scheme, void (*sums)(const SumBlock&)) {
    kernels.sums[static_cast<std::size_t>(scheme)] = sums;
  };
#if defined(__AVX512F__)
  set(Scheme::dot8, sums<Dots, Dot8, 8, 2, 4>);
  set(Scheme::dot4, sums<Dots, Dot4, 8, 2, 4>);
  set(Scheme::dot2, sums<Dots, Dot2, 8, 2, 4>);
  set(Scheme::wide8, sums<Wides, Wide8, 4, 2, 2>);
  set(Scheme::xor11, sums<Bits, Xor11, 4, 4, 4>);
  set(Scheme::xor12, sums<Bits, Xor12, 4, 2, 4>);
  set(Scheme::ternary11, sums<Bits, Ternary11, 4, 4, 4>);
  set(Scheme::ternary12, sums<Bits, Ternary12, 4, 2, 4>);
  set(Scheme::signs12, sums<Bits, Signs12, 4, 4, 4>);
  set(Scheme::and21, sums<Bits, And21, 4, 2, 2>);
  set(Scheme::and22, sums<Bits, And22, 4, 1, 2>);
#else
#if !defined(ANYBIT_NO_DOTS)
  set(Scheme::dot8, sums<Dots, Dot8, 4, 1, 1>);
  set(Scheme::dot4, sums<Dots, Dot4, 4, 1, 1>);
  set(Scheme::dot2, sums<Dots, Dot2, 4, 1, 1>);
#endif
  set(Scheme::wide8, sums<Wides, Wide8, 2, 1, 1>);
  set(Scheme::xor11, sums<Bits, Xor11, 4, 1, 1>);
  set(Scheme::xor12, sums<Bits, Xor12, 2, 1, 1>);
  set(Scheme::ternary11, sums<Bits, Ternary11, 4, 1, 1>);
  set(Scheme::ternary12, sums<Bits, Ternary12, 2, 1, 1>);
  set(Scheme::signs12, sums<Bits, Signs12, 4, 1, 1>);
  set(Scheme::and21, sums<Bits, And21, 2, 1, 1>);
  set(Scheme::and22, sums<Bits, And22, 1, 1, 1>);
#endif
  set(Scheme::depthwise, depthwise);
  kernels.less_signs = less_signs;
  kernels.tails = {thresholds, many_thresholds, lines, affine, table, arithmetic, rounded};
  return kernels;
}();

}  // namespace

template <>
const ProductKernels& anybit::compiled<ProductKernels, anybit::Level::ANYBIT_ISA>() {
  return all;
}
