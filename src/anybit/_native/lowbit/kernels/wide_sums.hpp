// SPDX-License-Identifier: Apache-2.0
// Products of bytes by 16-bit operands. Weights are spread once for a block of pixels, or stored
// so.
#pragma once
#include "schemes.hpp"
#include "tile.hpp"

namespace {

// Spreads the weights of a panel: the even bytes of each step, then the odd ones, with 16 bits.
template <class Isa>
void spread_to_words(const std::byte* from, int steps, std::byte* to) {
  constexpr int register_size = sizeof(typename Isa::Vector);
  for (int step = 0; step < steps; ++step, from += vector_block, to += 2 * vector_block)
    for (int i = 0; i < vector_block; i += register_size) {
      const auto packed = Isa::load(from + i);
      Isa::store(to + i, Isa::even_s8(packed));
      Isa::store(to + vector_block + i, Isa::odd_s8(packed));
    }
}

// The same as `sums` of Wide8.
template <class Isa, int rows, int panels>
void wide_sums(const SumBlock& at) {
  constexpr int single_rows = 4, fewest_pixels = 4 * rows;
  if (at.count < fewest_pixels) return sums<Isa, Wide8, single_rows, 1, 1>(at);
  // The weights of a part and its pixels stay in the L1 cache.
  constexpr int part_steps = 64;
  alignas(64) std::byte words[panels * part_steps * 2 * vector_block];
  sum_by_parts<Isa, Wide8<Isa>, part_steps>(at, [&](SumBlock part) {
    const int steps = part.segment_count * part.steps, count = part.panels;
    const std::byte* from = part.weights;
    part.weights = words, part.panel = std::ptrdiff_t{steps} * 2 * vector_block;
    for (int panel = 0; panel < count; panel += panels, part.sums += panels * panel_channels) {
      part.panels = std::min(panels, count - panel);
      for (int i = 0; i < part.panels; ++i, from += at.panel)
        spread_to_words<Isa>(from, steps, words + i * part.panel);
      sums_of_part<Isa, Widened8, rows, panels, 1>(part);
    }
  });
}

// The same with weights that are stored as `spread_to_words` leaves them.
template <class Isa, int rows, int panels>
void word_sums(const SumBlock& at) {
  constexpr int part_steps = 64, rows_of_one = 4;
  if (at.panels == 1)
    return sum_by_parts<Isa, Widened8<Isa>, part_steps>(
        at, sums_of_part<Isa, Widened8, rows_of_one, 1, 1>);
  sum_by_parts<Isa, Widened8<Isa>, part_steps>(at, sums_of_part<Isa, Widened8, rows, panels, 1>);
}

}  // namespace
