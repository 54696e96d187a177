// SPDX-License-Identifier: Apache-2.0
// Product kernels of levels that add integer instructions. All other kernels are those of the level
// below.
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own headers start some intrinsics from a vector that is undefined on purpose.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "_native/isa/levels.hpp"
#include "_native/lowbit/product_kernels.hpp"
#include "block_sums.hpp"
#include "product_sums.hpp"
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#include "depthwise_dots.hpp"
#endif
#if defined(__AVX512VBMI__)
#include "channel_lookup.hpp"
#endif

template <>
const ProductKernels& anybit::compiled<ProductKernels, anybit::Level::ANYBIT_ISA>() {
  static const ProductKernels all = [] {
    auto kernels = compiled<ProductKernels, without_integer_extensions(Level::ANYBIT_ISA)>();
    set_dots(kernels);
    set_short_dots(kernels);
    set_blocks(kernels);
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
    sums_of(kernels, Scheme::depthwise4) = depthwise_dots;
    kernels.tap_panels = most_tap_panels;
    set_words(kernels);
#endif
#if defined(__AVX512VBMI__)
    kernels.look_up_channels = look_up_channels;
#endif
#if defined(__AVX512VPOPCNTDQ__) || (defined(__clang__) && !defined(__ARM_NEON))
    // Clang also generates dot products from other multiply-adds.
    set_wides(kernels);
    set_bits(kernels);
#endif
    return kernels;
  }();
  return all;
}
