// SPDX-License-Identifier: Apache-2.0
// What a packed product keeps: weights, constants, and how windows lie in memory.
#pragma once

#include <vector>

#include "packed_epilogue.hpp"
#include "packed_product.hpp"
#include "packed_weights.hpp"
#include "short_epilogue.hpp"
#include "winograd.hpp"

namespace anybit::lowbit {

struct PackedProduct::State {
  // Adjacent panels of a chunk that read the same source channels.
  struct PanelRun {
    std::ptrdiff_t source = 0;  // bytes from the start of a pixel
    std::int64_t panel = 0;     // the first one
    int panels = 0;
    std::int64_t channel = 0;  // in the chunk
  };

  // Runs of short windows that are copied one after another: fewer steps than reading them in
  // place.
  struct Gathered {
    std::vector<std::ptrdiff_t> runs;  // offsets; empty if windows are read in place
    std::ptrdiff_t run_bytes = 0;
  };

  Tensor source, target;
  Window window;
  Storage from, to;
  FloatStrides floats;
  PixelPlaces places;
  ChannelRuns channel_runs;

  Scheme scheme = Scheme::dot8;
  TapOrder tap_order = TapOrder::single;
  const ProductKernels* kernels = nullptr;
  std::vector<std::ptrdiff_t> segments;
  Gathered gathered;
  // Number of windows at the same stride between the last window of a line and the first of the
  // next; -1 if the stride does not fit or the kernel does not use it.
  int gap = -1;
  int block_pixels = 32;
  PackedWeights weights;
  Winograd winograd;               // instead of these
  int narrow_steps = 31;           // bit schemes: 8-bit sums hold 31 steps of 8 ones
  const RowTable* rows = nullptr;  // of schemes that select rows
  void (*sums)(const SumBlock&) = nullptr;
  std::vector<PanelRun> runs;          // in the order of chunks
  std::vector<std::size_t> first_run;  // per chunk, and the end

  // See Settling: addend of the pixel, constant of its class.
  Settling settling = Settling::general;
  Aligned<std::int32_t> scales;
  Aligned<std::int32_t> constants;  // [class][padded channels]
  std::int64_t padded = 0;
  std::vector<std::int32_t> line_class, column_class;  // per line and column of the target
  std::int32_t column_classes = 1;

  PackedEpilogue epilogue;
  std::vector<FloatStrides> arrays;  // that its steps read
  ShortEpilogue short_epilogue;
  void (*short_sums)(const SumBlock&) = nullptr;  // for chunks that the short epilogue covers
  std::int64_t multiplications = 0;
};

}  // namespace anybit::lowbit
