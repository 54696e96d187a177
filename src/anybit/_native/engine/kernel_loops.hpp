// SPDX-License-Identifier: Apache-2.0
// Common parts of the files that are compiled once per ISA level; ANYBIT_ISA names the namespace.
// All functions that loops call are forced inline or in an unnamed namespace: the linker could
// merge functions of external linkage across levels.
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels.hpp"
#include "ops/blocks.hpp"

namespace anybit::ANYBIT_ISA {
namespace {

// Gathered type of a parameter: integers are read exactly, not rounded to T. The magnitude of a
// block takes the place of x.
template <class Op, class T, std::size_t parameter>
using Gathered =
    std::conditional_t<Op::inputs[parameter + (BlockReduction<Op> ? 0 : 1)].domain.integer, double,
                       T>;

// Prepared parameters of `apply`, or of `partials` if it needs others.
template <class Op, class T, int variant, bool backward, std::size_t... input>
[[gnu::always_inline]] inline auto prepared_at(const typename Op::Attributes& attributes,
                                               const void* const* gathered, std::int64_t i,
                                               std::index_sequence<input...>) {
  constexpr bool others = requires { &Op::template prepare_partials<variant, T>; };
  if constexpr (backward && others)
    return Op::template prepare_partials<variant, T>(
        attributes, static_cast<const Gathered<Op, T, input>*>(gathered[input])[i]...);
  else
    return Op::template prepare<variant, T>(
        attributes, static_cast<const Gathered<Op, T, input>*>(gathered[input])[i]...);
}

template <class Op>
using Parameters = std::make_index_sequence<Op::inputs.size() - (BlockReduction<Op> ? 0 : 1)>;

template <class Op, class T, bool backward>
inline constexpr std::size_t columns =
    std::tuple_size_v<decltype(prepared_at<Op, T, 0, backward>({}, nullptr, 0, Parameters<Op>{}))>;

// Elements are independent, even if x and out are the same array. The pragma lets the compiler
// vectorize without run-time checks.
template <class Body>
[[gnu::always_inline]] inline void for_each_element(std::int64_t length, Body body) {
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
  for (std::int64_t i = 0; i < length; ++i) body(i);
}

// An operator may declare that only the first columns vary, and that all others follow from its
// attributes.
template <class Op>
inline constexpr std::size_t varying_columns = [] {
  if constexpr (requires { Op::varying_columns; }) return std::size_t{Op::varying_columns};
  else return std::size_t{max_columns};
}();

template <class Op, class T, int variant, bool backward>
void prepare(const void* attributes, const void* const* gathered, std::int64_t count,
             void* prepared, std::int64_t plane) {
  const auto typed = *static_cast<const typename Op::Attributes*>(attributes);
  const void* inputs[Op::inputs.size()];  // nothing that is written can change these
  for (std::size_t input = 0; input < Parameters<Op>::size(); ++input)
    inputs[input] = gathered[input];
  const auto prepare_one = [&](std::int64_t i) {
    const auto row = prepared_at<Op, T, variant, backward>(typed, inputs, i, Parameters<Op>{});
    for (std::size_t column = 0; column < row.size(); ++column)
      static_cast<T*>(prepared)[static_cast<std::int64_t>(column) * plane + i] = row[column];
  };
  if constexpr (BlockReduction<Op>) for_each_element(count, prepare_one);
  else
    for (std::int64_t i = 0; i < count; ++i) prepare_one(i);
}

// By variant. An operator may declare how many consecutive variants share a preparation.
template <class Op, class T, bool backward, int... variant>
constexpr auto prepares_of(std::integer_sequence<int, variant...>) {
  constexpr int sharing = [] {
    if constexpr (requires { Op::preparations; }) {
      static_assert(Op::variants % Op::preparations == 0);
      return Op::variants / Op::preparations;
    } else return 1;
  }();
  return std::array<Prepare, sizeof...(variant)>{
      prepare<Op, T, variant / sharing * sharing, backward>...};
}

}  // namespace
}  // namespace anybit::ANYBIT_ISA
