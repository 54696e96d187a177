// SPDX-License-Identifier: Apache-2.0
// The order of loops over strided operands.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>

namespace anybit {

// Sorts loops, that with the smallest stride of out innermost, and merges loops that carry on.
// Returns the number of loops left.
template <class Loop>
int sort_and_merge(std::span<Loop> loops) {
  std::stable_sort(loops.begin(), loops.end(),
                   [](const Loop& a, const Loop& b) { return std::abs(a.out) > std::abs(b.out); });
  std::size_t count = 0;
  for (const Loop& loop : loops) {
    if (count > 0 && loops[count - 1].can_merge(loop)) {
      Loop& merged = loops[count - 1];
      const std::int64_t outer = merged.size;
      merged = loop;
      merged.size *= outer;
    } else {
      loops[count++] = loop;
    }
  }
  return static_cast<int>(count);
}

}  // namespace anybit
