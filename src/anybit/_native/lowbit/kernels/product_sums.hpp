// SPDX-License-Identifier: Apache-2.0
// Sums of all schemes, in tiles that fill the registers of the ISA level: pixels, panels, and
// panels for a single pixel.
#pragma once
#include "_native/lowbit/product_kernels.hpp"
#include "instructions.hpp"
#include "rows.hpp"
#include "schemes.hpp"
#include "tile.hpp"
#if defined(__SSE4_1__) && !defined(__AVX512F__)
#include "spread_sums.hpp"
#endif
#if defined(__AVX2__) && !defined(__AVX512F__)
#include "wide_sums.hpp"
#endif

namespace {

using anybit::lowbit::ProductKernels;
using anybit::lowbit::Scheme;

constexpr auto& sums_of(ProductKernels& kernels, Scheme scheme) {
  return kernels.sums[static_cast<std::size_t>(scheme)];
}

constexpr auto& short_sums_of(ProductKernels& kernels, Scheme scheme) {
  return kernels.short_sums[static_cast<std::size_t>(scheme)];
}

// Templates, so that a level compiles only what it uses.
template <class = void>
constexpr void set_dots(ProductKernels& kernels) {
  kernels.dot_is_exact = dot_is_exact;
#if defined(__AVX512F__)
  sums_of(kernels, Scheme::dot8) = sums<Dots, Dot8, 8, 2, 4>;
  sums_of(kernels, Scheme::dot4) = sums<Dots, Dot4, 8, 2, 4>;
  sums_of(kernels, Scheme::dot2) = sums<Dots, Dot2, 8, 2, 4>;
#if defined(__AVX512VNNI__)
  sums_of(kernels, Scheme::dot3) = sums<Dots, Dot3, 8, 2, 4>;
  sums_of(kernels, Scheme::dot1) = sums<Dots, Dot1, 8, 2, 4>;
#endif
#elif defined(__AVX2__)
  sums_of(kernels, Scheme::dot8) = sums<Dots, Dot8, 4, 1, 4>;
  sums_of(kernels, Scheme::dot4) = sums<Dots, Dot4, 4, 1, 4>;
  sums_of(kernels, Scheme::dot2) = sums<Dots, Dot2, 4, 1, 4>;
#elif !defined(ANYBIT_NO_DOTS)
  sums_of(kernels, Scheme::dot8) = sums<Dots, Dot8, 4, 1, 1>;
  sums_of(kernels, Scheme::dot4) = sums<Dots, Dot4, 4, 1, 1>;
  sums_of(kernels, Scheme::dot2) = sums<Dots, Dot2, 4, 1, 1>;
#endif
}

template <class = void>
constexpr void set_short_dots([[maybe_unused]] ProductKernels& kernels) {
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  // Dot products add to 32 bits at once; the level below does not.
  kernels.short_dots = {};
  for (const Scheme scheme : {Scheme::dot8, Scheme::dot4, Scheme::dot2})
    short_sums_of(kernels, scheme) = nullptr;
  kernels.spreads_weights = kernels.gathers_windows = false;
#if defined(__AVX512VNNI__)
  kernels.prefers_bytes = true;
#endif
  kernels.split_pairs = kernels.wide_words = nullptr;
#elif defined(__AVX512F__)
  kernels.short_dots = {sums<Avx512Short, Dot8, 8, 2, 4>, sums<Avx512Short, Dot4, 8, 2, 4>,
                        sums<Avx512Short, Dot2, 8, 2, 4>};
#elif defined(__AVX2__)
  kernels.short_dots = {sums<Avx2Short, Dot8, 6, 1, 1>, spread_sums<Avx2Short, 4, 6>,
                        spread_sums<Avx2Short, 2, 6>};
  short_sums_of(kernels, Scheme::dot8) = sums<Avx2Short, Dot8, 6, 1, 1, std::int16_t>;
  short_sums_of(kernels, Scheme::dot4) = spread_sums<Avx2Short, 4, 6, std::int16_t>;
  short_sums_of(kernels, Scheme::dot2) = spread_sums<Avx2Short, 2, 6, std::int16_t>;
  kernels.spreads_weights = kernels.gathers_windows = true;
  kernels.block_pixels = kernels.near_pixels = 36;  // whole tiles of 6 pixels
#elif defined(__SSE4_1__)
  kernels.short_dots = {sums<Sse4Short, Dot8, 2, 1, 1>, spread_sums<Sse4Short, 4, 2>,
                        spread_sums<Sse4Short, 2, 2>};
  short_sums_of(kernels, Scheme::dot8) = sums<Sse4Short, Dot8, 2, 1, 1, std::int16_t>;
  short_sums_of(kernels, Scheme::dot4) = spread_sums<Sse4Short, 4, 2, std::int16_t>;
  short_sums_of(kernels, Scheme::dot2) = spread_sums<Sse4Short, 2, 2, std::int16_t>;
  kernels.spreads_weights = kernels.gathers_windows = true;
#endif
}

template <class = void>
constexpr void set_words(ProductKernels& kernels) {
#if defined(__AVX512VNNI__)
  kernels.words = sums<Dots, Words, 8, 2, 4>;
#elif defined(__AVXVNNI__)
  kernels.words = sums<Dots, Words, 6, 1, 1>;
#elif defined(__AVX512F__)
  kernels.words = sums<Wides, Words, 8, 2, 4>;
#else
  constexpr int rows = Wides::lanes == 8 ? 6 : 2;
  kernels.words = sums<Wides, Words, rows, 1, 1>;
#endif
}

template <class = void>
constexpr void set_wides(ProductKernels& kernels) {
#if defined(__AVX512F__)
  sums_of(kernels, Scheme::wide8) = sums<Wides, Wide8, 4, 2, 2>;
#elif defined(__AVX2__)
  sums_of(kernels, Scheme::wide8) = wide_sums<Avx2, 2, 2>;
  kernels.wide_words = word_sums<Avx2, 2, 2>;
#else
  sums_of(kernels, Scheme::wide8) = sums<Wides, Wide8, 2, 1, 1>;
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  // Adds four products to 32 bits at once.
#elif defined(__AVX512F__)
  kernels.split_pairs = sums<Avx512, Split8, 8, 1, 1>;
#elif defined(__AVX2__)
  kernels.split_pairs = sums<Avx2, Split8, 4, 1, 1>;
#elif defined(__SSE4_1__)
  kernels.split_pairs = sums<Sse4, Split8, 2, 1, 1>;
#endif
}

// The low plane marks zeros.
[[maybe_unused]] void less_signs(const SumBlock& at, std::int32_t* addends) {
  for (int pixel = 0; pixel < at.count; ++pixel) {
    std::int32_t zeros = 0;
    for (int segment = 0; segment < at.segment_count; ++segment)
      for (int i = 0; i < at.steps; ++i)
        zeros += __builtin_popcount(
            anybit::lowbit::word_at(at.pixels[pixel] + at.segments[segment] + i * 8));
    addends[pixel] = zeros - at.segment_count * at.steps * 32;
  }
}

template <class = void>
constexpr void set_bits(ProductKernels& kernels) {
#if defined(__AVX512F__)
  sums_of(kernels, Scheme::xor11) = sums<Bits, Xor11, 4, 4, 4>;
  sums_of(kernels, Scheme::xor12) = sums<Bits, Xor12, 4, 2, 4>;
  sums_of(kernels, Scheme::ternary11) = sums<Bits, Ternary11, 4, 4, 4>;
  sums_of(kernels, Scheme::ternary12) = sums<Bits, Ternary12, 4, 2, 4>;
  sums_of(kernels, Scheme::signs12) = sums<Bits, Signs12, 4, 4, 4>;
  sums_of(kernels, Scheme::and21) = sums<Bits, And21, 4, 2, 2>;
  sums_of(kernels, Scheme::and22) = sums<Bits, And22, 4, 1, 2>;
#else
  sums_of(kernels, Scheme::xor11) = sums<Bits, Xor11, 4, 1, 1>;
  sums_of(kernels, Scheme::xor12) = sums<Bits, Xor12, 2, 1, 1>;
  sums_of(kernels, Scheme::ternary11) = sums<Bits, Ternary11, 4, 1, 1>;
  sums_of(kernels, Scheme::ternary12) = sums<Bits, Ternary12, 2, 1, 1>;
  sums_of(kernels, Scheme::signs12) = sums<Bits, Signs12, 4, 1, 1>;
  sums_of(kernels, Scheme::and21) = sums<Bits, And21, 2, 1, 1>;
  sums_of(kernels, Scheme::and22) = sums<Bits, And22, 1, 1, 1>;
#endif
#if defined(__SSE4_1__) && !defined(__AVX512F__)
  sums_of(kernels, Scheme::rows11) = sums_of(kernels, Scheme::rows22) = row_sums<>;
  short_sums_of(kernels, Scheme::rows11) = short_sums_of(kernels, Scheme::rows22) =
      row_sums<std::int16_t>;
#endif
  kernels.less_signs = less_signs;
}

}  // namespace
