// SPDX-License-Identifier: Apache-2.0
// Loops that are gone before the optimiser starts.
#pragma once
#include <type_traits>
#include <utility>

namespace {

// f(0), ..., f(n - 1), each index a constant. Arrays that are indexed by such constants become
// registers in every compiler. With `for` and #pragma unroll they do not in GCC: it takes arrays
// apart before it unrolls, so that accumulators stay in memory and each dot product brings a load
// and a store.
template <int n, class F>
[[gnu::always_inline]] inline void unroll(F&& f) {
  [&]<int... i>(std::integer_sequence<int, i...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, i>()), ...);
  }(std::make_integer_sequence<int, n>());
}

}  // namespace
