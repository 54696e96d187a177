// SPDX-License-Identifier: Apache-2.0
// Sums of weights over parts of a window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "packed_weights.hpp"
#include "program.hpp"
#include "window_taps.hpp"

namespace anybit::lowbit {

// Sums of the weights of a channel over rectangles of taps.
class TapSums {
 public:
  explicit TapSums(const Window& window)
      : height_(window.kernel_height),
        width_(window.kernel_width),
        sums_(static_cast<std::size_t>((height_ + 1) * (width_ + 1))) {}

  void read(const Weights& weights, std::int64_t channel) {
    positive_ = 0;
    const std::int8_t* weight = weights.of(channel);
    for (std::int64_t y = 0; y < height_; ++y) {
      std::int64_t line = 0;
      for (std::int64_t x = 0; x < width_; ++x) {
        for (std::int64_t i = 0; i < weights.inner; ++i, ++weight) {
          line += *weight;
          positive_ += *weight > 0 ? 1 : 0;
        }
        before(y + 1, x + 1) = before(y, x + 1) + line;
      }
    }
  }

  std::int64_t positive() const { return positive_; }  // number of positive weights
  std::int64_t all() { return before(height_, width_); }
  std::int64_t of(const Taps& rows, const Taps& columns) {
    return before(rows.last, columns.last) - before(rows.first, columns.last) -
           before(rows.last, columns.first) + before(rows.first, columns.first);
  }

 private:
  // Sum over the taps above and left of a corner.
  std::int64_t& before(std::int64_t y, std::int64_t x) {
    return sums_[static_cast<std::size_t>(y * (width_ + 1) + x)];
  }

  const std::int64_t height_, width_;
  std::vector<std::int64_t> sums_;
  std::int64_t positive_ = 0;
};

}  // namespace anybit::lowbit
