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
#include "block_sums.hpp"
#include "product_sums.hpp"
#if defined(__SSE4_1__) && !defined(__AVX512F__)
#include "short_epilogues.hpp"
#endif
#include "epilogues.hpp"
#if defined(__AVX512DQ__)
#include "curved_pieces.hpp"
#endif
#include "steps.hpp"
#if defined(__SSE4_1__)
#include "winograd.hpp"
#endif
#if defined(__AVX2__) && !defined(__AVX512BW__)
#include "depthwise_pairs.hpp"
#else
#include "depthwise.hpp"
#endif

namespace {

using anybit::lowbit::EpilogueKind;

constexpr ProductKernels all = [] {
  ProductKernels kernels{};
  set_dots(kernels);
  set_short_dots(kernels);
  set_wides(kernels);
  set_words(kernels);
  set_bits(kernels);
  set_blocks(kernels);
#if defined(__SSE4_1__)
  kernels.winograd_source = winograd_source;
  kernels.winograd_sums = winograd_sums;
#if defined(__AVX512F__)
  kernels.winograd_panels = 2, kernels.winograd_rows = 8;
#endif
#endif
  kernels.epilogues = {thresholds, many_thresholds, lines,   affine, table,        arithmetic,
                       rounded,    rounded_lines,   nullptr, pieces, packed_pieces};
#if defined(__AVX2__) && !defined(__AVX512BW__)
  sums_of(kernels, Scheme::depthwise) = depthwise_pairs<WideTaps>;
  kernels.short_tap_pairs = depthwise_pairs<ShortTaps>;
  short_sums_of(kernels, Scheme::depthwise) = depthwise_pairs<ShortTaps, std::int16_t>;
#else
  sums_of(kernels, Scheme::depthwise) = depthwise;
#endif
#if defined(__SSE4_1__) && !defined(__AVX512F__)
  kernels.short_epilogue = short_epilogue;
#endif
#if defined(__AVX2__) && !defined(__AVX512F__)
  kernels.epilogues[static_cast<std::size_t>(EpilogueKind::packed_steps)] = packed_steps;
#endif
#if defined(__AVX512DQ__)
  kernels.epilogues[static_cast<std::size_t>(EpilogueKind::curved_pieces)] = curved_pieces;
#endif
  return kernels;
}();

}  // namespace

template <>
const ProductKernels& anybit::compiled<ProductKernels, anybit::Level::ANYBIT_ISA>() {
  return all;
}
