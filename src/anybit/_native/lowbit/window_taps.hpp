// SPDX-License-Identifier: Apache-2.0
// Part of a window inside a tensor, along one axis.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

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

// Taps of the kernel inside the tensor, for the windows of one axis. Windows with the same taps
// share a class.
struct AxisClasses {
  std::vector<std::int32_t> of;  // class of each window
  std::vector<Taps> taps;

  AxisClasses(std::int64_t size, std::int64_t windows, std::int64_t kernel, std::int64_t stride,
              std::int64_t dilation, std::int64_t pad) {
    std::map<std::pair<std::int64_t, std::int64_t>, std::int32_t> classes;
    for (std::int64_t window = 0; window < windows; ++window) {
      const Taps inside(window * stride - pad, kernel, dilation, size);
      // Most windows have the class of the previous one.
      if (!of.empty() && taps[static_cast<std::size_t>(of.back())] == inside) {
        of.push_back(of.back());
        continue;
      }
      const auto [entry, is_new] = classes.try_emplace({inside.first, inside.last},
                                                       static_cast<std::int32_t>(classes.size()));
      if (is_new) taps.push_back(inside);
      of.push_back(entry->second);
    }
  }
  // One class with all taps for all windows.
  AxisClasses(std::int64_t windows, std::int64_t kernel)
      : of(static_cast<std::size_t>(windows)), taps{{0, kernel}} {}
};

}  // namespace anybit::lowbit
