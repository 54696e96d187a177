// SPDX-License-Identifier: Apache-2.0
// Sizes of products with a scale per block of channels, and the range of their accumulators.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "damage.hpp"
#include "program.hpp"
#include "verify_matmul.hpp"

namespace anybit::lowbit {

inline constexpr std::int64_t most_weights = std::int64_t{1} << 32;

// Throws unless weights, zero-points and scales fit the channels, and accumulators 32 bits.
template <IsBlockProduct Kind>
void verify_blocks(const Kind& at, const Tensor& from, std::int64_t channels) {
  constexpr bool is_asymmetric = std::is_same_v<Kind, AsymmetricBlockProduct>;
  need(from.step, 1, 1, "step");
  need(at.block, 1, is_asymmetric ? most_asymmetric_block : most_along_axis, "block");
  need(at.weight_bits, 1, 8, "weight_bits");
  const std::int64_t weights = from.channels * channels;
  need(weights, 1, most_weights, "the number of weights");
  need_size(at.weights.size(), (weights * at.weight_bits + 7) / 8, "weights");
  const std::int64_t blocks = (from.channels + at.block - 1) / at.block;
  need_size(at.scales.size(), channels * blocks, "scales");
  std::int64_t weight = (std::int64_t{1} << at.weight_bits) - 1;  // the largest magnitude
  if constexpr (is_asymmetric)
    need_size(at.zero_points.size(), (channels * blocks * at.weight_bits + 7) / 8, "zero-points");
  else {
    need(at.lowest, -255, 255, "the lowest weight");
    weight = std::max(std::abs(at.lowest), std::abs(at.lowest + weight));
  }
  const std::int64_t last = from.lowest + from.levels - 1;
  const std::int64_t code =
      at.has_zero() ? from.levels - 1 : std::max(std::abs(from.lowest), std::abs(last));
  const std::int64_t terms = std::min(at.block, from.channels);
  if (terms > largest_sum / std::max<std::int64_t>(weight * code, 1))
    refuse("accumulators go beyond 32 bits");
}

}  // namespace anybit::lowbit
