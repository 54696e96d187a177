// SPDX-License-Identifier: Apache-2.0
// Which kernel a product gets.
#pragma once

#include "_native/isa/levels.hpp"
#include "product.hpp"
#include "product_kernels.hpp"
#include "weights.hpp"

namespace anybit::lowbit {

// The fastest scheme of the level that reads its source in that coding; a dot product or depthwise
// one for bytes. Throws Error if there is none for bits or planes.
Scheme scheme_for(const ProductTask& task, const WeightForm& form, Coding coding, Level level);

// How many products of an index and a weight add up to 16 bits at most.
std::int64_t short_terms(const ProductTask& task, const WeightForm& form);

// How the fastest scheme wants its source.
Coding coding_for(const ProductTask& task, const WeightForm& form, Level level);

}  // namespace anybit::lowbit
