// SPDX-License-Identifier: Apache-2.0
// Constants of epilogues on sums of 16 bits. Each is proven equal to the epilogue of the program
// for every reachable accumulator of its channels.
#pragma once

#include <vector>

#include "packed_epilogue.hpp"
#include "packed_weights.hpp"

namespace anybit::lowbit {

// Arrays are per channel, padded to whole chunks; see ShortEpilogueBlock.
struct ShortEpilogue {
  std::vector<ShortForm> forms;      // per block of 32 channels
  std::vector<std::uint8_t> chunks;  // per chunk: whether all its blocks have a form
  Settling settling = Settling::general;
  Aligned<std::int16_t> scales, constants;  // constants are [class][padded channels]
  Aligned<std::int16_t> lows, highs, factors, terms, multipliers, thresholds;
  Aligned<std::int32_t> centers;
  int right_shift = 0;

  bool covers(std::size_t chunk) const { return chunk < chunks.size() && chunks[chunk] != 0; }
  std::size_t bytes() const;

  // Arguments of the kernel; `set_chunk` sets those of the chunk that starts at a channel.
  ShortEpilogueBlock block(Coding target, std::int64_t levels, std::int32_t shift) const;
  void set_chunk(ShortEpilogueBlock& block, const PackedEpilogue& epilogue,
                 std::int64_t channel) const;
};

// What the sums of a product become: accumulator = (sum + addend) * scale + constant, times the
// direction of its channel for Thresholds.
struct Accumulation {
  const Aligned<std::int32_t>& scales;
  const Aligned<std::int32_t>& constants;  // [class][padded channels]
  std::int64_t padded = 0;
  bool has_addends = false;
};

// Finds the forms for accumulators that fit 16 bits. Throws Error if the constants exceed
// `most_bytes`.
ShortEpilogue make_short_epilogue(const ProductTask& task, const Weights& weights,
                                  const Accumulation& from, Coding target);

}  // namespace anybit::lowbit
