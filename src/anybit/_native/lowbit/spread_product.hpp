// SPDX-License-Identifier: Apache-2.0
// Products of tensors with zeros between their elements, without the zeros.
//
// A transposed convolution is a Gather that inserts zeros, and a Product with strides of 1. Outputs
// as far apart as the elements read these through the same taps. Such outputs are a phase: a
// product of the source of the Gather, with these taps only. Its sums are the same integers.
#pragma once

#include <vector>

#include "program.hpp"

namespace anybit::lowbit {

struct Phase {
  std::int64_t line = 0, column = 0;   // of its first output
  std::int64_t height = 0, width = 0;  // its number of outputs
  Window window;
  std::vector<std::uint8_t> weights;  // indices, as of a Product
  bool has_taps = true;               // if not, all weights are 0
};

struct SpreadProduct {
  std::int64_t line_step = 1, column_step = 1;  // distance of the outputs of a phase
  std::vector<Phase> phases;                    // by line, then by column

  // Whether all phases have the same windows.
  bool has_one_window() const;
};

// Returns for each Product the Gather that inserts zeros into its source, and itself for all other
// instructions. `uses` are the numbers of instructions that use each tensor.
std::vector<std::size_t> find_spreads(const Program& program, const std::vector<std::size_t>& uses);

// Returns the phases of a product with this number of channels.
SpreadProduct split_product(const Program& program, const Gather& gather, const Product& product,
                            std::int64_t channels);

// Returns a phase as a Product, which borrows its weights.
Product product_of(const Phase& phase, const Product& product);

}  // namespace anybit::lowbit
