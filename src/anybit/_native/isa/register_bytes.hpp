// SPDX-License-Identifier: Apache-2.0
// Size of the vector registers of the ISA level that a source is compiled for.
#pragma once

namespace {

#if defined(__AVX512F__)
constexpr int register_bytes = 64;
#elif defined(__AVX2__)
constexpr int register_bytes = 32;
#else
constexpr int register_bytes = 16;
#endif

}  // namespace
