// SPDX-License-Identifier: Apache-2.0
// Part of a window inside a tensor, along one axis.
#pragma once

#include <algorithm>
#include <cstdint>

namespace anybit::lowbit {

// Range [first, last) of the positions start + i * step, i < count, that are in [0, size).
// Positions are the taps of a window, or the windows of a tap.
struct Taps {
  std::int64_t first = 0, last = 0;

  Taps(std::int64_t start, std::int64_t count, std::int64_t step, std::int64_t size) {
    const std::int64_t before = start < 0 ? (-start + step - 1) / step : 0;
    const std::int64_t until = size > start ? (size - start + step - 1) / step : 0;
    last = std::min(count, until);
    first = std::min(before, last);
  }
  Taps(std::int64_t first_, std::int64_t last_) : first(first_), last(last_) {}

  bool empty() const { return first == last; }
  std::int64_t count() const { return last - first; }
  bool operator==(const Taps&) const = default;
};

}  // namespace anybit::lowbit
