// SPDX-License-Identifier: Apache-2.0
// Ranges of the accumulators of a product with weights.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "damage.hpp"
#include "program.hpp"
#include "verify_matmul.hpp"
#include "window_taps.hpp"

namespace anybit::lowbit {

// Whether a tap is inside the tensor for some windows, and outside for some.
struct TapReach {
  bool inside = false, outside = false;
};

inline std::vector<TapReach> reaches(std::int64_t size, std::int64_t windows, std::int64_t kernel,
                                     std::int64_t stride, std::int64_t dilation, std::int64_t pad) {
  std::vector<TapReach> all(static_cast<std::size_t>(kernel));
  for (std::int64_t tap = 0; tap < kernel; ++tap) {
    const Taps inside(tap * dilation - pad, windows, stride, size);
    all[static_cast<std::size_t>(tap)] = {!inside.empty(), inside.count() < windows};
  }
  return all;
}

// Range of the accumulators of each target channel, over all codes.
class Accumulators {
 public:
  template <class Target>
  Accumulators(const Product& at, const Tensor& from, const Target& to)
      : at_(at), inner_(from.channels / at.groups) {
    const Window& w = at.window;
    rows_ = reaches(from.height, to.height, w.kernel_height, w.stride_height, w.dilation_height,
                    w.pad_top);
    columns_ =
        reaches(from.width, to.width, w.kernel_width, w.stride_width, w.dilation_width, w.pad_left);
    low_ = from.lowest;
    high_ = from.lowest + from.step * (from.levels - 1);
  }

  // Returns the range of the next channel. Throws if a weight has no value.
  Sums next() {
    Sums sums;
    for (const TapReach& row : rows_)
      for (const TapReach& column : columns_)
        tap({row.inside && column.inside, row.outside || column.outside}, sums);
    return sums;
  }

 private:
  void tap(const TapReach& reach, Sums& sums) {
    const std::int64_t low = reach.outside ? std::min<std::int64_t>(low_, 0) : low_;
    const std::int64_t high = reach.outside ? std::max<std::int64_t>(high_, 0) : high_;
    for (std::int64_t i = 0; i < inner_; ++i) {
      const std::int64_t weight = next_weight();
      sums.magnitude += std::abs(weight);
      if (!reach.inside) continue;
      sums.lowest += std::min(weight * low, weight * high);
      sums.highest += std::max(weight * low, weight * high);
    }
  }

  std::int64_t next_weight() {
    const std::size_t byte = place_ / 8;
    std::uint32_t both = at_.weights[byte];
    if (byte + 1 < at_.weights.size()) both |= std::uint32_t{at_.weights[byte + 1]} << 8;
    const std::uint32_t index = both >> place_ % 8 & ((1u << at_.weight_bits) - 1);
    place_ += static_cast<std::size_t>(at_.weight_bits);
    if (index >= at_.values.size()) refuse("a weight has no value, index " + text(index));
    return at_.values[index];
  }

  const Product& at_;
  const std::int64_t inner_;
  std::vector<TapReach> rows_, columns_;
  std::int64_t low_ = 0, high_ = 0;
  std::size_t place_ = 0;  // next bit of the weights
};

}  // namespace anybit::lowbit
