// SPDX-License-Identifier: Apache-2.0
// Dot products of weights of 4 or 2 bits that are unpacked to bytes once for a block of pixels.
#pragma once
#include "_native/lowbit/scratch.hpp"
#include "schemes.hpp"
#include "tile.hpp"

namespace {

struct SpreadWeights {
  Scratch bytes;
  const std::byte* from = nullptr;  // packed weights, or null if they may have changed
};
thread_local SpreadWeights spread_weights;

// Unpacks the steps of a panel; those of a phase follow each other.
template <class Isa, int bits>
void spread_panel(const SumBlock& at, const std::byte* from, std::byte* to) {
  const auto values = Isa::table(at.values);
  constexpr int register_size = sizeof(typename Isa::Vector);
  for (const std::byte* const end = from + at.panel; from != end; from += vector_block)
    unroll<8 / bits>([&](auto phase) __attribute__((always_inline)) {
      for (int i = 0; i < vector_block; i += register_size)
        Isa::store(to + i, Isa::template look_up<phase * bits, bits>(values, Isa::load(from + i)));
      to += vector_block;
    });
}

// The same as `sums` of DotPacked.
template <class Isa, int bits, int most_rows, class Sum = std::int32_t>
void spread_sums(const SumBlock& at) {
  constexpr int phases = 8 / bits, fewest_pixels = 3 * most_rows;
  SpreadWeights& local = spread_weights;
  if (at.fresh_weights) local.from = nullptr;
  SumBlock bytes = at;
  bytes.panel *= phases;
  bytes.steps *= phases, bytes.narrow_steps *= phases;
  const bool is_spread = local.from == at.weights;
  std::byte* const room = at.count < fewest_pixels && !is_spread
                              ? nullptr
                              : local.bytes.get(static_cast<std::size_t>(bytes.panel * at.panels));
  if (room == nullptr) {
    constexpr int single_panels = Isa::lanes == 8 ? 4 : 1;
    if constexpr (bits == 4) return sums<Isa, Dot4, most_rows, 1, single_panels, Sum>(at);
    else return sums<Isa, Dot2, most_rows, 1, single_panels, Sum>(at);
  }
  for (int panel = 0; panel < at.panels && !is_spread; ++panel)
    spread_panel<Isa, bits>(at, at.weights + panel * at.panel, room + panel * bytes.panel);
  local.from = at.weights;
  bytes.weights = room;
  sums<Isa, Dot8, most_rows, 1, 1, Sum>(bytes);
}

}  // namespace
