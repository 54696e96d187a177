// SPDX-License-Identifier: Apache-2.0
// Changes of the index of a piecewise constant epilogue.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "packed_epilogue.hpp"

namespace anybit::lowbit {

// A sum from which on the index is another one.
struct PieceChange {
  std::int64_t start = 0;
  int before = 0, after = 0;
};

// The index of the smallest sums. Starts at the ends of int32 are reached always, and never.
inline int first_code(const PackedEpilogue& epilogue, std::int64_t channel) {
  const std::int32_t* const starts = epilogue.thresholds.data() + channel * most_pieces;
  const auto reached =
      std::upper_bound(starts, starts + most_pieces, std::numeric_limits<std::int32_t>::min()) -
      starts;
  return epilogue.piece_codes[channel * most_pieces + reached];
}

// The changes of a channel that some sums reach.
inline std::vector<PieceChange> changes_of(const PackedEpilogue& epilogue, std::int64_t channel) {
  using Int = std::numeric_limits<std::int32_t>;
  const std::int32_t* const starts = epilogue.thresholds.data() + channel * most_pieces;
  const std::uint8_t* const codes = epilogue.piece_codes.data() + channel * most_pieces;
  std::vector<PieceChange> changes;
  int before = first_code(epilogue, channel);
  for (std::int64_t i = 0; i < most_pieces - 1; ++i) {
    if (starts[i] == Int::min() || starts[i] == Int::max() || starts[i] == starts[i + 1]) continue;
    if (codes[i + 1] == before) continue;
    changes.push_back({starts[i], before, codes[i + 1]});
    before = codes[i + 1];
  }
  return changes;
}

}  // namespace anybit::lowbit
