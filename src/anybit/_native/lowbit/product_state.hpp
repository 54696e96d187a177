// SPDX-License-Identifier: Apache-2.0
// What a packed product is made of. Filled in once, by product.cpp; read by product_run.cpp.
#pragma once

#include <vector>

#include "product.hpp"
#include "product_kernels.hpp"
#include "weights.hpp"

namespace anybit::lowbit {

// Neighbouring panels of one chunk that read the same source channels.
struct PanelRun {
  std::ptrdiff_t source = 0;  // bytes from the beginning of a pixel
  std::int64_t panel = 0;     // the first one
  int panels = 0;
  std::int64_t channel = 0;  // in the chunk
};

// Constants for everything behind the sums. Arrays are per channel, padded to whole chunks.
struct TailState {
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
void draw_lines(TailState& tail, std::int64_t channels, std::int64_t levels);

// Throws Error if it would take more bytes than that.
TailState tail_state(const Tail& tail, std::int64_t channels, std::int64_t levels,
                     std::int64_t most_bytes);

struct PackedProduct::State {
  Tensor source, target;
  Window window;
  Storage from, to;
  FloatStrides floats;

  Scheme scheme = Scheme::dot8;
  const ProductKernels* kernels = nullptr;
  std::vector<std::ptrdiff_t> segments;
  // Between the last window of a line and the first of the next one lie so many more at the same
  // distance; -1 where they do not, or are left out.
  int gap = -1;
  int block_pixels = 32;
  PackedWeights weights;
  int narrow_steps = 31;               // of the bit schemes: sums of 8 bits take 31 times 8 ones
  std::vector<PanelRun> runs;          // chunk by chunk
  std::vector<std::size_t> first_run;  // of each chunk, and the end

  // See Settling: the pixel's addend, and the constant of its class.
  Settling settling = Settling::general;
  Aligned<std::int32_t> scales;
  Aligned<std::int32_t> constants;  // [class][padded channels]
  std::int64_t padded = 0;
  std::vector<std::int32_t> line_class, column_class;  // of the target's lines and columns
  std::int32_t column_classes = 1;

  TailState tail;
  std::int64_t multiplications = 0;
};

// Takes what comes before the tail into the thresholds, or leaves it out, where that changes
// nothing.
void settle(PackedProduct::State& at, std::int64_t largest_weight);

}  // namespace anybit::lowbit
