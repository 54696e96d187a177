// SPDX-License-Identifier: Apache-2.0
// Operands of products of two tensors: their views, and the range of their sums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>

#include "damage.hpp"
#include "program.hpp"

namespace anybit::lowbit {

inline constexpr std::int64_t most_along_axis = std::int64_t{1} << 24;
inline constexpr std::int64_t largest_sum = std::numeric_limits<std::int32_t>::max();

struct Sums {
  std::int64_t lowest = 0, highest = 0, magnitude = 0;
};

// Throws unless all elements of a view are in the tensor.
inline void verify_view(const Integers& view, const MatMul& at, std::int64_t lines,
                        const Tensor& from) {
  need_size(view.size(), 4, "a view");
  need(at.depth, 1, from.elements(), "the depth");
  std::int64_t last = 0;
  const std::int64_t sizes[] = {2, at.groups, lines, at.depth};
  for (std::size_t i = 0; i < view.size(); ++i) {
    need(view[i], 0, from.elements(), "a number of a view");
    last += view[i] * (sizes[i] - 1);
  }
  need(last, 0, from.elements() - 1, "the last element of a view");
}

// Returns the largest magnitude of a code, which 16 bits have to hold.
inline std::int64_t largest_word(const Tensor& from) {
  constexpr std::int64_t most = std::numeric_limits<std::int16_t>::max();
  const std::int64_t highest = from.lowest + from.step * (from.levels - 1);
  need(from.lowest, -most, most, "the lowest code of an operand");
  need(highest, -most, most, "the highest code of an operand");
  return std::max(std::abs(from.lowest), std::abs(highest));
}

// Returns the range of the accumulators, over all codes. Throws unless operands and sums fit.
inline Sums verify_operands(const MatMul& at, const Tensor& first, const Tensor& second) {
  for (const std::int64_t size : {at.groups, at.rows, at.columns, at.depth})
    need(size, 1, most_along_axis, "a size");
  need(at.merges, 0, 1, "merges");
  verify_view(at.first_view, at, at.rows, first);
  verify_view(at.second_view, at, at.columns, second);
  const std::int64_t largest = largest_word(first) * largest_word(second);
  if (at.depth > largest_sum / 2 / std::max<std::int64_t>(largest, 1))
    refuse("accumulators go beyond 31 bits");
  const std::int64_t highest[] = {first.lowest + first.step * (first.levels - 1),
                                  second.lowest + second.step * (second.levels - 1)};
  const auto [low, high] = std::minmax({first.lowest * second.lowest, first.lowest * highest[1],
                                        highest[0] * second.lowest, highest[0] * highest[1]});
  return {at.depth * low, at.depth * high, 0};
}

}  // namespace anybit::lowbit
