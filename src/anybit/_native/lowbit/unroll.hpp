// SPDX-License-Identifier: Apache-2.0
// Loops that are unrolled before optimization.
#pragma once
#include <type_traits>
#include <utility>

namespace {

// repeat<n>(f) calls f(0), ..., f(n - 1) with constants; f must be forced inline. All compilers
// keep arrays indexed by such constants in registers. With `for` and #pragma unroll GCC does not:
// it splits arrays before it unrolls, so that every dot product loads and stores its accumulator.
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

// The same with indices as types, for f that need template arguments. It compiles n functions,
// which takes longer.
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
