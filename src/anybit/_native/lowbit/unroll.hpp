// SPDX-License-Identifier: Apache-2.0
// Loops that are gone before the optimiser starts.
#pragma once
#include <type_traits>
#include <utility>

namespace {

// repeat<n>(f) calls f(0), ..., f(n - 1), and f, which is to be forced inline, sees constants.
// Arrays that are indexed by such constants become registers in every compiler. With `for` and
// #pragma unroll they do not in GCC: it takes arrays apart before it unrolls, so that accumulators
// stay in memory and each dot product brings a load and a store.
template <class Indices>
struct Repeated;
template <int... i>
struct Repeated<std::integer_sequence<int, i...>> {
  template <class F>
  [[gnu::always_inline]] void operator()(F&& f) const {
    (f(i), ...);
  }
};
template <int n>
constexpr Repeated<std::make_integer_sequence<int, n>> repeat;

// The same with indices that say by their type which they are: for f that have parameters of
// templates to choose. Each of n is a function of its own, which takes longer to compile.
template <class Indices>
struct Unrolled;
template <int... i>
struct Unrolled<std::integer_sequence<int, i...>> {
  template <class F>
  [[gnu::always_inline]] void operator()(F&& f) const {
    (f(std::integral_constant<int, i>()), ...);
  }
};
template <int n>
constexpr Unrolled<std::make_integer_sequence<int, n>> unroll;

}  // namespace
