// SPDX-License-Identifier: Apache-2.0
// Traits of the ISA level of this compilation, and tile sizes that fill its registers: pixels,
// panels, and panels for a single pixel.
#pragma once

#if defined(__AVX512F__)
#include "isa_avx512.hpp"
#elif defined(__AVX2__)
#include "isa_avx2.hpp"
#elif defined(__SSE4_1__)
#include "isa_sse4.hpp"
#elif defined(__ARM_NEON)
#include "isa_neon.hpp"
#include "isa_portable.hpp"
#else
#include "isa_portable.hpp"
#endif

namespace {

#if defined(__AVX512VNNI__)
using Dots = Avx512Vnni;
#elif defined(__AVX512F__)
using Dots = Avx512;
#elif defined(__AVXVNNI__)
using Dots = Avx2Vnni;
#elif defined(__AVX2__)
using Dots = Avx2;
#elif defined(__SSE4_1__)
using Dots = Sse4;
#elif defined(__ARM_NEON)
using Dots = Neon;
#else
#define ANYBIT_NO_DOTS
#endif

#if defined(__AVX512F__)
using Wides = Avx512;
#elif defined(__AVX2__)
using Wides = Avx2;
#elif defined(__SSE4_1__)
using Wides = Sse4;
#else
using Wides = Portable;
#endif

#if defined(__AVX512VPOPCNTDQ__)
using Bits = Avx512Popcnt;
#elif defined(__AVX512F__)
using Bits = Avx512Bits;
#elif defined(__AVX2__)
using Bits = Avx2Bits;
#elif defined(__SSE4_1__)
using Bits = Sse4Bits;
#elif defined(__ARM_NEON)
using Bits = NeonBits;
#else
using Bits = PortableBits;
#endif

constexpr bool dot_is_exact([[maybe_unused]] int largest_index,
                            [[maybe_unused]] int largest_weight) {
#if defined(ANYBIT_NO_DOTS)
  return false;
#elif defined(__AVX512VNNI__) || defined(__AVXVNNI__)
  return true;
#elif defined(__SSE4_1__)
  return 2 * largest_index * largest_weight <= 32767;
#else
  return largest_index <= 127;
#endif
}

}  // namespace
