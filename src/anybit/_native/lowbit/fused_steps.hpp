// SPDX-License-Identifier: Apache-2.0
// Elementwise instructions that a product computes on its sums, while these are in registers.
#pragma once

#include <vector>

#include "program.hpp"

namespace anybit::lowbit {

// Returns which instruction computes each instruction: the Product before it for an Elementwise
// that is the only reader of its floats, itself for all others. Operations and their order stay the
// same. `last_uses` are the last instructions that use each array of floats that is neither input
// nor output.
std::vector<std::size_t> find_products_of_steps(const Program& program,
                                                const std::vector<std::size_t>& last_uses);

}  // namespace anybit::lowbit
