// SPDX-License-Identifier: Apache-2.0
// Products of bytes by 16-bit operands. Both are spread to pairs of numbers of 16 bits: the weights
// once for a block of pixels, the pixels once for some panels.
#pragma once
#include "schemes.hpp"
#include "tile.hpp"

namespace {

using anybit::lowbit::most_block_pixels;

constexpr std::ptrdiff_t step_bytes = 4, word_step_bytes = 2 * step_bytes;

// Spreads the weights of a panel: the even bytes of each step, then the odd ones.
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

// The same of a pixel.
template <class Isa>
void spread_pixel(const std::byte* from, int steps, std::byte* to) {
  constexpr int together = Isa::lanes;
  int step = 0;
  for (; step + together <= steps; step += together) {
    const auto packed = Isa::load_any(from + step * step_bytes);
    Isa::store_interleaved(to + step * word_step_bytes, Isa::even_u8(packed), Isa::odd_u8(packed));
  }
  for (; step < steps; ++step) {
    std::uint32_t bytes;
    std::memcpy(&bytes, from + step * step_bytes, sizeof bytes);
    const std::uint32_t words[] = {bytes & 0xff00ffu, bytes >> 8 & 0xff00ffu};
    std::memcpy(to + step * word_step_bytes, words, sizeof words);
  }
}

// The same as `sums` of Wide8.
template <class Isa, int rows>
void wide_sums(const SumBlock& at) {
  constexpr int single_rows = 4, fewest_pixels = 8;
  if (at.count < fewest_pixels) return sums<Isa, Wide8, single_rows, 1, 1>(at);
  // The weights of a part and its pixels stay in the L1 cache.
  constexpr int part_steps = 64;
  alignas(64) std::byte weights[part_steps * 2 * vector_block];
  alignas(64) std::byte pixel_words[most_block_pixels * part_steps * word_step_bytes];
  const std::byte* pixels[most_block_pixels];
  const std::ptrdiff_t start = 0;
  sum_by_parts<Isa, Wide8<Isa>, part_steps>(at, [&](const SumBlock& part) {
    const int steps = part.segment_count * part.steps;
    std::byte* to = pixel_words;
    for (int i = 0; i < part.count; ++i) {
      pixels[i] = to;
      for (int segment = 0; segment < part.segment_count; ++segment) {
        spread_pixel<Isa>(part.pixels[i] + part.segments[segment], part.steps, to);
        to += part.steps * word_step_bytes;
      }
    }
    SumBlock words = part;
    words.pixels = pixels, words.weights = weights;
    words.segments = &start, words.segment_count = 1;
    words.steps = 2 * steps, words.panels = 1;
    for (int panel = 0; panel < part.panels; ++panel, words.sums += panel_channels) {
      spread_to_words<Isa>(part.weights + panel * part.panel, steps, weights);
      sums_of_part<Isa, Words, rows, 1, 1>(words);
    }
  });
}

}  // namespace
