// SPDX-License-Identifier: Apache-2.0
// Products whose source codes select rows of partial sums. A nibble of the source holds the codes
// of a few channels, a nibble of the weights those of the same channels in one output.
#pragma once

#include "packed_weights.hpp"

namespace anybit::lowbit {

// Largest code of the source in the table of rows.
constexpr std::int64_t largest_row_code(std::int64_t levels) {
  return levels <= 2 ? 1 : levels - 1;
}

// Returns the number of terms that 16-bit sums hold.
std::int64_t most_row_terms(std::int64_t levels, const WeightForm& form);

// Returns the table of a scheme. All products share it, so that it stays in the L1 cache.
const RowTable& row_table(Scheme scheme, std::int64_t levels);

// Returns the bytes of the source whose sums fit 8 bits.
int row_bytes_in_8_bits(Scheme scheme, std::int64_t levels, const WeightForm& form);

// Packs the weights of pairs of panels together: for each byte of the source, 32 bytes with the
// weights of its lower and of its upper nibble.
void pack_rows(Scheme scheme, const Weights& weights, const WeightForm& form, const Runs& runs,
               const std::vector<PanelChannels>& panels, std::int64_t most_bytes,
               PackedWeights& to);

}  // namespace anybit::lowbit
