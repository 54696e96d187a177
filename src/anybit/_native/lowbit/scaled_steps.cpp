// SPDX-License-Identifier: Apache-2.0
#include "scaled_steps.hpp"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "packed_epilogue.hpp"

namespace anybit::lowbit {

namespace {

// A channel, of direction * accumulator.
struct Line {
  std::int64_t multiplier = 0, term = 0;
  int shift = 0;

  // The first x with multiplier * x + term >= index << shift; any if all or none have it.
  std::int64_t start_of(std::int64_t index) const {
    constexpr std::int64_t always = std::numeric_limits<std::int32_t>::min();
    constexpr std::int64_t never = std::numeric_limits<std::int32_t>::max();
    const std::int64_t rest = index * (std::int64_t{1} << shift) - term;
    if (multiplier == 0) return rest > 0 ? never : always;
    return std::clamp(quotient_up(rest, multiplier), always, never);
  }
  std::int64_t index_of(std::int64_t x) const { return (multiplier * x + term) >> shift; }
};

}  // namespace

ScaledSteps::ScaledSteps(const Scaled& epilogue, std::int64_t levels) {
  const std::size_t channels = epilogue.multipliers.size();
  thresholds_.reserve(channels * static_cast<std::size_t>(levels - 1));
  for (std::size_t channel = 0; channel < channels; ++channel) {
    const std::int64_t multiplier = epilogue.multipliers[channel];
    const Line line{std::abs(multiplier), epilogue.term(channel), epilogue.right_shifts[channel]};
    directions_.push_back(multiplier < 0 ? -1 : 1);
    for (std::int64_t index = 1; index < levels; ++index) {
      std::int64_t start = line.start_of(index);
      const std::size_t bit =
          channel * static_cast<std::size_t>(levels) + static_cast<std::size_t>(index);
      constexpr std::int64_t last = std::numeric_limits<std::int32_t>::max();
      if (epilogue.is_late(bit) && line.multiplier != 0 && start < last &&
          line.index_of(start) == index)
        ++start;
      thresholds_.push_back(static_cast<std::int32_t>(start));
    }
  }
}

}  // namespace anybit::lowbit
