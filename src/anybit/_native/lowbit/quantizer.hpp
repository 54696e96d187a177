// SPDX-License-Identifier: Apache-2.0
// Prepared thresholds of a Quantize instruction: one mapping to indices, or one per channel.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "elements.hpp"
#include "program.hpp"

namespace anybit::lowbit {

class Quantizer {
 public:
  Quantizer(const Quantize& at, const Tensor& target);

  bool per_channel() const { return maps_.size() > 1; }
  const ThresholdMap& map(std::int64_t channel) const {
    return maps_[per_channel() ? static_cast<std::size_t>(channel) : 0];
  }

  // For reports: the kind of mapping, and the bytes of the thresholds.
  std::string_view method() const;
  std::int64_t bytes() const { return static_cast<std::int64_t>(thresholds_.size() * 4); }

 private:
  static void choose_method(ThresholdMap& map, float lowest_code);

  std::vector<float> thresholds_;  // all thresholds, with -infinity before and NaN after them
  std::vector<ThresholdMap> maps_;
};

}  // namespace anybit::lowbit
