// SPDX-License-Identifier: Apache-2.0
#include "verify_product.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "taps.hpp"

namespace anybit::lowbit {

namespace {

constexpr std::int64_t largest_in_window = std::int64_t{1} << 20;
constexpr std::int64_t most_weights = std::int64_t{1} << 32;
constexpr std::int64_t largest_sum = std::numeric_limits<std::int32_t>::max();

void verify_axis(std::int64_t size, std::int64_t windows, std::int64_t kernel, std::int64_t stride,
                 std::int64_t dilation, std::int64_t pads) {
  const std::int64_t covered = (kernel - 1) * dilation + 1, padded = size + pads;
  if (covered > padded)
    refuse("a window of " + text(covered) + " over " + text(padded) + " elements");
  const std::int64_t fitting = (padded - covered) / stride + 1;
  need(windows, fitting, fitting, "the number of windows");
}

// Whether an element of a window lies inside the tensor for some window, and outside for some.
struct Reach {
  bool inside = false, outside = false;
};

std::vector<Reach> reaches(std::int64_t size, std::int64_t windows, std::int64_t kernel,
                           std::int64_t stride, std::int64_t dilation, std::int64_t pad) {
  std::vector<Reach> all(static_cast<std::size_t>(kernel));
  for (std::int64_t tap = 0; tap < kernel; ++tap) {
    const Taps inside(tap * dilation - pad, windows, stride, size);
    all[static_cast<std::size_t>(tap)] = {!inside.empty(), inside.count() < windows};
  }
  return all;
}

struct Sums {
  std::int64_t lowest = 0, highest = 0, magnitude = 0;
};

// The range of the accumulators of each target channel, whatever the codes are.
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

  // Of the next channel. Throws if a weight is none of the values.
  Sums next() {
    Sums sums;
    for (const Reach& row : rows_)
      for (const Reach& column : columns_)
        tap({row.inside && column.inside, row.outside || column.outside}, sums);
    return sums;
  }

 private:
  void tap(const Reach& reach, Sums& sums) {
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
  std::vector<Reach> rows_, columns_;
  std::int64_t low_ = 0, high_ = 0;
  std::size_t place_ = 0;  // the next bit of the weights
};

template <class Target>
void verify_weights(const Product& at, const Tensor& from, const Target& to) {
  need(at.groups, 1, from.channels, "groups");
  if (from.channels % at.groups != 0 || to.channels % at.groups != 0)
    refuse(text(at.groups) + " groups of " + text(from.channels) + " and " + text(to.channels) +
           " channels");
  need(at.weight_bits, 1, 8, "weight_bits");
  std::int64_t weights = 1;
  for (const std::int64_t factor :
       {at.window.kernel_height, at.window.kernel_width, from.channels / at.groups, to.channels}) {
    weights *= factor;
    need(weights, 1, most_weights, "the number of weights");
  }
  need_size(at.weights.size(), (weights * at.weight_bits + 7) / 8, "weights");
  need(static_cast<std::int64_t>(at.values.size()), 1, std::int64_t{1} << at.weight_bits,
       "the number of values");
  need_within(at.values, -128, 127, "a value");
}

void verify_tail(const Thresholds& tail, std::int64_t channels, std::int64_t levels) {
  need_size(tail.directions.size(), channels, "directions");
  for (const std::int32_t direction : tail.directions)
    if (direction != 1 && direction != -1) refuse("a direction is " + text(direction));
  need_size(tail.thresholds.size(), channels * (levels - 1), "thresholds");
  for (std::size_t i = 1; i < tail.thresholds.size(); ++i)
    if (i % static_cast<std::size_t>(levels - 1) != 0 &&
        tail.thresholds[i] < tail.thresholds[i - 1])
      refuse("thresholds descend");
}

void verify_tail(const Affine& tail, std::int64_t channels, std::int64_t) {
  need_size(tail.gains.size(), channels, "gains");
  need_size(tail.offsets.size(), channels, "offsets");
  for (const Floats& numbers : {tail.gains, tail.offsets})
    for (const float each : numbers)
      if (!std::isfinite(each)) refuse("a gain or an offset is not finite");
  need(tail.shift, -most_shift, most_shift, "the shift");
}

void verify_tail(const Table& tail, std::int64_t channels, std::int64_t levels) {
  need_size(tail.first.size(), channels, "first");
  if (tail.entries.empty() || tail.entries.size() % static_cast<std::size_t>(channels) != 0)
    refuse(text(static_cast<std::int64_t>(tail.entries.size())) + " entries for " + text(channels) +
           " channels");
  need_within(tail.entries, 0, levels - 1, "an entry");
}

void verify_steps(const auto& tail, std::int64_t channels) {
  need_size(tail.scales.size(), channels, "scales");
  for (const Step& step : tail.steps) {
    need(step.operation, 0, std::size(operation_names) - 1, "an operation");
    need_size(step.operands.size(), 1, channels, "operands");
  }
}

void verify_tail(const Arithmetic& tail, std::int64_t channels, std::int64_t) {
  verify_steps(tail, channels);
}

void verify_tail(const Rounded& tail, std::int64_t channels, std::int64_t) {
  verify_steps(tail, channels);
  need(tail.shift, -most_shift, most_shift, "the shift");
}

// Whether the table has an entry for every sum of the channel.
void verify_sums(const Tail& tail, std::int64_t channels, std::int64_t channel, const Sums& sums) {
  const auto* const table = std::get_if<Table>(&tail);
  if (table == nullptr) return;
  const std::int64_t first = table->first[static_cast<std::size_t>(channel)];
  const auto each = static_cast<std::int64_t>(table->entries.size()) / channels;
  if (sums.lowest < first || sums.highest >= first + each)
    refuse("channel " + text(channel) + " has accumulators from " + text(sums.lowest) + " to " +
           text(sums.highest) + ", its table those from " + text(first) + " to " +
           text(first + each - 1));
}

}  // namespace

template <class Target>
void verify_window(const Window& window, const Tensor& from, const Target& to) {
  Window copy = window;
  copy.visit([](std::string_view name, std::int64_t number) {
    need(number, name.starts_with("pad") ? 0 : 1, largest_in_window, name.data());
  });
  verify_axis(from.height, to.height, window.kernel_height, window.stride_height,
              window.dilation_height, window.pad_top + window.pad_bottom);
  verify_axis(from.width, to.width, window.kernel_width, window.stride_width, window.dilation_width,
              window.pad_left + window.pad_right);
}

template <class Target>
void verify_product(const Product& at, const Tensor& from, const Target& to, std::int64_t levels) {
  verify_window(at.window, from, to);
  verify_weights(at, from, to);
  std::visit([&](const auto& tail) { verify_tail(tail, to.channels, levels); }, at.tail);
  const std::int64_t largest = from.step * (from.levels - 1) + std::abs(from.lowest);
  Accumulators accumulators(at, from, to);
  for (std::int64_t channel = 0; channel < to.channels; ++channel) {
    const Sums sums = accumulators.next();
    // Kernels add indices, and account for the lowest code elsewhere.
    if (sums.magnitude > largest_sum / std::max<std::int64_t>(largest, 1))
      refuse("accumulators of channel " + text(channel) + " go beyond 32 bits");
    verify_sums(at.tail, to.channels, channel, sums);
  }
}

template void verify_window(const Window&, const Tensor&, const Tensor&);
template void verify_product(const Product&, const Tensor&, const Tensor&, std::int64_t);
template void verify_product(const Product&, const Tensor&, const Port&, std::int64_t);

}  // namespace anybit::lowbit
