// SPDX-License-Identifier: Apache-2.0
// Constants of the epilogue of a product: everything after its sums.
#pragma once

#include <vector>

#include "packed_weights.hpp"
#include "product_kernels.hpp"
#include "program.hpp"

namespace anybit::lowbit {

// Constants for everything behind the sums. Arrays are per channel, padded to whole chunks.
struct Epilogue {
  TailKind kind = TailKind::thresholds;
  Aligned<std::int32_t> thresholds;
  Aligned<float> gains, offsets;
  Aligned<float> limits, bottoms, tops;  // of lines, as in TailBlock
  Aligned<std::int32_t> lows, highs;
  std::int32_t shift = 0;
  Aligned<std::int64_t> first;
  std::vector<std::uint8_t> entries;
  std::vector<Aligned<float>> operands;
  std::vector<TailStep> steps;
};

// Lets many thresholds be lines where they lie near to some, without changing a result.
void fit_lines(Epilogue& tail, std::int64_t channels, std::int64_t levels);

// Throws Error if it would take more bytes than that.
Epilogue make_epilogue(const Tail& tail, std::int64_t channels, std::int64_t levels,
                       std::int64_t most_bytes);

}  // namespace anybit::lowbit
