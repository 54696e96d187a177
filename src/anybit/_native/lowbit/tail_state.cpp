// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "damage.hpp"
#include "product_state.hpp"

namespace anybit::lowbit {

namespace {

std::int64_t whole_chunks(std::int64_t channels) {
  return (channels + chunk_channels - 1) / chunk_channels * chunk_channels;
}

Aligned<float> per_channel(Floats values, std::int64_t channels) {
  Aligned<float> all(whole_chunks(channels));
  for (std::int64_t i = 0; i < channels; ++i)
    all[i] = values[values.size() == 1 ? 0 : static_cast<std::size_t>(i)];
  return all;
}

void fill(TailState& to, const Thresholds& tail, std::int64_t channels, std::int64_t levels) {
  const std::int64_t each = levels - 1, padded = whole_chunks(channels);
  const auto threshold = [&](std::int64_t channel, std::int64_t i) {
    return tail.thresholds[static_cast<std::size_t>(channel * each + i)];
  };
  if (levels <= few_levels) {
    to.kind = TailKind::thresholds;
    to.thresholds = Aligned<std::int32_t>(padded * each);
    for (std::int64_t channel = 0; channel < channels; ++channel)
      for (std::int64_t i = 0; i < each; ++i)
        to.thresholds[(channel / panel_channels * each + i) * panel_channels +
                      channel % panel_channels] = threshold(channel, i);
    return;
  }
  to.kind = TailKind::many_thresholds;
  to.thresholds = Aligned<std::int32_t>(padded * 256);
  for (std::int64_t channel = 0; channel < padded; ++channel)
    for (std::int64_t i = 0; i < 256; ++i)
      to.thresholds[channel * 256 + i] = channel < channels && i < each
                                             ? threshold(channel, i)
                                             : std::numeric_limits<std::int32_t>::max();
}

void fill(TailState& to, const Affine& tail, std::int64_t channels, std::int64_t) {
  to.kind = TailKind::affine;
  to.gains = per_channel(tail.gains, channels);
  to.offsets = per_channel(tail.offsets, channels);
  to.shift = static_cast<std::int32_t>(tail.shift);
}

void fill(TailState& to, const Table& tail, std::int64_t channels, std::int64_t) {
  to.kind = TailKind::table;
  to.entries.assign(tail.entries.begin(), tail.entries.end());
  to.first = Aligned<std::int64_t>(whole_chunks(channels));
  const auto each = static_cast<std::int64_t>(tail.entries.size()) / channels;
  for (std::int64_t channel = 0; channel < channels; ++channel)
    to.first[channel] = channel * each - tail.first[static_cast<std::size_t>(channel)];
}

void fill_steps(TailState& to, const auto& tail, std::int64_t channels) {
  to.gains = per_channel(tail.scales, channels);
  for (const Step& step : tail.steps) {
    to.operands.push_back(per_channel(step.operands, channels));
    to.steps.push_back({step.kind(), to.operands.back().data()});
  }
}

void fill(TailState& to, const Arithmetic& tail, std::int64_t channels, std::int64_t) {
  to.kind = TailKind::arithmetic;
  fill_steps(to, tail, channels);
}

void fill(TailState& to, const Rounded& tail, std::int64_t channels, std::int64_t) {
  to.kind = TailKind::rounded;
  fill_steps(to, tail, channels);
  to.shift = static_cast<std::int32_t>(tail.shift);
}

std::int32_t& threshold_of(const TailState& tail, std::int64_t channel, std::int64_t i,
                           std::int64_t each) {
  return tail.kind == TailKind::many_thresholds
             ? tail.thresholds[channel * 256 + i]
             : tail.thresholds[(channel / panel_channels * each + i) * panel_channels +
                               channel % panel_channels];
}

std::int64_t quotient_up(std::int64_t a, std::int64_t b) {  // b > 0
  return a / b + (a % b > 0 ? 1 : 0);
}

// scale * sum + constant >= threshold, of the sum alone; sums are far from the ends of int32.
void settle_channel(PackedProduct::State& at, std::int64_t channel) {
  const std::int64_t scale = at.scales[channel], constant = at.constants[channel];
  const std::int64_t each = at.target.levels - 1;
  constexpr std::int64_t never = std::numeric_limits<std::int32_t>::max();
  for (std::int64_t i = 0; i < each; ++i) {
    std::int32_t& threshold = threshold_of(at.tail, channel, i, each);
    const std::int64_t rest = threshold - constant;
    // Of a negative sum: -sum >= t where ~sum >= t - 1.
    const std::int64_t own = scale > 0   ? quotient_up(rest, scale)
                             : scale < 0 ? quotient_up(rest, -scale) - 1
                             : rest > 0  ? never
                                         : -never;
    threshold = static_cast<std::int32_t>(std::clamp(own, -never, never));
  }
  at.scales[channel] = scale < 0 ? -1 : 0;
}

}  // namespace

void settle(PackedProduct::State& at, std::int64_t largest_weight) {
  if (at.scheme == Scheme::signs12) return;
  if (at.tail.kind != TailKind::thresholds && at.tail.kind != TailKind::many_thresholds) {
    const auto all = [](const Aligned<std::int32_t>& numbers, std::int64_t size, int wanted) {
      return std::all_of(numbers.data(), numbers.data() + size,
                         [=](std::int32_t each) { return each == wanted; });
    };
    if (all(at.scales, at.target.channels, 1))
      at.settling = all(at.constants, at.constants.size(), 0) ? Settling::bare : Settling::plain;
    return;
  }
  // Each factor is small: none of the products can overflow before the last.
  const std::int64_t largest_code =
      at.source.step * (at.source.levels - 1) + std::abs(at.source.lowest);
  const std::int64_t terms = at.source.channels * at.window.kernel_height * at.window.kernel_width;
  constexpr std::int64_t most = 1 << 29;
  if (at.constants.size() != at.padded || largest_code > most ||
      terms > most / std::max<std::int64_t>(1, largest_weight * largest_code))
    return;
  for (std::int64_t channel = 0; channel < at.target.channels; ++channel)
    settle_channel(at, channel);
  at.settling = Settling::raw;
}

TailState tail_state(const Tail& tail, std::int64_t channels, std::int64_t levels,
                     std::int64_t most_bytes) {
  // A step may have one operand, which becomes one per channel.
  const auto steps = std::visit(
      [](const auto& each) -> std::size_t {
        if constexpr (requires { each.steps; }) return each.steps.size();
        return 0;
      },
      tail);
  constexpr std::int64_t operand = sizeof(float);
  need_room(static_cast<std::int64_t>(steps) * whole_chunks(channels) * operand, most_bytes);
  TailState state;
  std::visit([&](const auto& each) { fill(state, each, channels, levels); }, tail);
  return state;
}

}  // namespace anybit::lowbit
