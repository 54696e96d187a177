// SPDX-License-Identifier: Apache-2.0
// Runs of packed products.
#pragma once

#include "packed_state.hpp"

namespace anybit::lowbit {

// Bytes of a gathered window, with room for a last copy of a whole register.
inline constexpr std::ptrdiff_t gathered_bytes = 256, copied_bytes = 32;

// Fills a part of a target of indices or of floats; the other pointer is null. All pointers are at
// row 0.
void run_product(const PackedProduct::State& at, const Part& part, const std::byte* source,
                 std::byte* target, float* floats, const float* const* arrays);

// The same by Winograd's algorithm.
void run_winograd(const PackedProduct::State& at, const Part& part, const std::byte* source,
                  std::byte* target, float* floats, const float* const* arrays);

}  // namespace anybit::lowbit
