// SPDX-License-Identifier: Apache-2.0
// The steps of a rounded epilogue are additions, multiplications and bounds with constants: of real
// numbers, they are a line between two bounds. The replay and the line in float32 both differ from
// it by rounding errors, which are bounded here for every sum whose index is not at a bound. If the
// line is farther from a tie than both errors together, it rounds to the same index.
//
// Beyond these sums, the replay and the line are beyond the bounds as well: each of their
// operations is monotonic. For the same reason, a bound between the steps is a bound of the index.
#include "rounded_line.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace anybit::lowbit {

namespace {

// Largest relative error of one float32 operation, and its largest absolute error at 0.
constexpr double half_ulp = 0x1p-24, least = 0x1p-149;
// The bounds are computed in double: they are raised by more than its rounding errors.
constexpr double margin = 1.01, tiny = 1e-12;
// More doubtful sums than this would cost more than the steps.
constexpr double most_error = 1.0 / 64;
// Intermediate results beyond it may overflow.
constexpr double most_value = 1e37;

// A real number as a function of the sum: gain * sum + offset.
struct RealLine {
  double gain = 0, offset = 0;
  double at(double sum) const { return gain * sum + offset; }
};

struct RoundedLine {
  float gain = 0, offset = 0, limit = 0.5f;
  float bottom = 0, top = 0;
};

bool is_bound(Operation operation) {
  return operation == Operation::maximum || operation == Operation::minimum;
}

bool is_line(const EpilogueStep& step, std::int64_t channel) {
  const float operand = step.operands[channel];
  switch (step.operation) {
    case Operation::keep:
    case Operation::add_kept:
    case Operation::multiply_kept:
    case Operation::sigmoid:
    case Operation::gelu:
      return false;
    case Operation::divide:
      return std::isfinite(operand) && operand != 0;
    default:
      return std::isfinite(operand);
  }
}

RealLine then(RealLine line, const EpilogueStep& step, std::int64_t channel) {
  const double operand = step.operands[channel];
  switch (step.operation) {
    case Operation::add:
      return {line.gain, line.offset + operand};
    case Operation::subtract:
      return {line.gain, line.offset - operand};
    case Operation::subtract_from:
      return {-line.gain, operand - line.offset};
    case Operation::multiply:
      return {line.gain * operand, line.offset * operand};
    case Operation::divide:
      return {line.gain / operand, line.offset / operand};
    default:
      return line;
  }
}

// One step in float32, as kernels compute it.
float replay(float y, const EpilogueStep& step, std::int64_t channel) {
  const float operand = step.operands[channel];
  switch (step.operation) {
    case Operation::add:
      return y + operand;
    case Operation::subtract:
      return y - operand;
    case Operation::subtract_from:
      return operand - y;
    case Operation::multiply:
      return y * operand;
    case Operation::divide:
      return y / operand;
    case Operation::maximum:
      return y > operand || y != y ? y : operand;
    case Operation::minimum:
      return y < operand || y != y ? y : operand;
    default:
      return y;
  }
}

// Computes the line of a channel.
class Fit {
 public:
  Fit(const PackedEpilogue& epilogue, std::int64_t channel, std::int64_t levels)
      : epilogue_(epilogue), channel_(channel), levels_(levels) {}

  bool run(RoundedLine& to) {
    if (!compose()) return false;
    const double error = error_of_replay() + error_of_line();
    if (!(error < most_error)) return false;
    to.gain = static_cast<float>(real_.gain), to.offset = static_cast<float>(real_.offset);
    to.limit = std::nextafter(static_cast<float>(0.5 - error), 0.0f);
    return set_bounds(to);
  }

 private:
  // Composes the steps, and finds the sums whose index is between 0 and the last one, with two
  // indices to spare on both sides. False if the steps do not form a line, or may overflow.
  bool compose() {
    const double most_sum = 0x1p31;
    RealLine line{epilogue_.gains[channel_], 0};
    if (!(std::abs(line.gain) * most_sum < most_value)) return false;
    for (const EpilogueStep& step : epilogue_.steps) {
      if (!is_line(step, channel_)) return false;
      line = then(line, step, channel_);
      if (!(std::abs(line.gain) * most_sum + std::abs(line.offset) < most_value)) return false;
    }
    real_ = {line.gain, line.offset + epilogue_.shift};
    first_ = -most_sum, last_ = most_sum;
    if (real_.gain == 0) return true;
    double ends[] = {(-2 - real_.offset) / real_.gain,
                     (static_cast<double>(levels_) + 1 - real_.offset) / real_.gain};
    std::sort(std::begin(ends), std::end(ends));
    first_ = std::clamp(std::floor(ends[0]) - 1, -most_sum, most_sum);
    last_ = std::clamp(std::ceil(ends[1]) + 1, -most_sum, most_sum);
    return true;
  }

  double largest(const RealLine& line) const {
    return std::max(std::abs(line.at(first_)), std::abs(line.at(last_)));
  }

  double error_of_replay() const {
    RealLine line{epilogue_.gains[channel_], 0};
    // The sum is rounded to float32, then multiplied.
    double error = 2.01 * half_ulp * largest(line) + least;
    for (const EpilogueStep& step : epilogue_.steps) {
      if (is_bound(step.operation)) continue;
      line = then(line, step, channel_);
      const double operand = std::abs(static_cast<double>(step.operands[channel_]));
      if (step.operation == Operation::multiply) error *= operand;
      if (step.operation == Operation::divide) error /= operand;
      error += half_ulp * (largest(line) + error) + least;
    }
    // The addition of the shift is exact: it is an index.
    return margin * error + tiny * (largest({real_.gain, 0}) + std::abs(real_.offset));
  }

  double error_of_line() const {
    const double sum = std::max(std::abs(first_), std::abs(last_));
    const auto gain = static_cast<float>(real_.gain), offset = static_cast<float>(real_.offset);
    double error = sum * std::abs(gain - real_.gain) + std::abs(offset - real_.offset);
    error += 2.01 * half_ulp * sum * std::abs(real_.gain) + least;
    error += half_ulp * (largest(real_) + error) + least;
    return margin * error + tiny * largest(real_);
  }

  // Index of a value after the steps from `step` on; NaN if one overflows.
  float index_after(float y, std::size_t step) const {
    for (; step < epilogue_.steps.size(); ++step) y = replay(y, epilogue_.steps[step], channel_);
    const auto shift = static_cast<float>(epilogue_.shift), last = static_cast<float>(levels_ - 1);
    return std::isfinite(y) ? std::nearbyint(std::clamp(y, -shift, last - shift)) + shift
                            : std::numeric_limits<float>::quiet_NaN();
  }

  // From the last step to the first: earlier bounds apply to what later ones leave. False if an
  // index is not known.
  bool set_bounds(RoundedLine& to) const {
    to.bottom = 0, to.top = static_cast<float>(levels_ - 1);
    bool rises = true;
    for (std::size_t i = epilogue_.steps.size(); i-- > 0;) {
      const EpilogueStep& step = epilogue_.steps[i];
      const float operand = step.operands[channel_];
      if (is_bound(step.operation)) {
        const float index = index_after(operand, i + 1);
        if (index != index) return false;
        const bool is_bottom = (step.operation == Operation::maximum) == rises;
        const auto limit = [&](float bound) {
          return is_bottom ? std::max(bound, index) : std::min(bound, index);
        };
        to.bottom = limit(to.bottom), to.top = limit(to.top);
      } else if (step.operation == Operation::subtract_from ||
                 (step.operation != Operation::add && step.operation != Operation::subtract &&
                  operand < 0)) {
        rises = !rises;
      }
    }
    return true;
  }

  const PackedEpilogue& epilogue_;
  const std::int64_t channel_, levels_;
  RealLine real_;
  double first_ = 0, last_ = 0;
};

}  // namespace

void fit_rounded_lines(PackedEpilogue& epilogue, std::int64_t channels, std::int64_t levels) {
  if (epilogue.kind != EpilogueKind::rounded) return;
  const std::int64_t padded = epilogue.gains.size();
  Aligned<float> gains(padded), offsets(padded), limits(padded), bottoms(padded), tops(padded);
  std::int64_t without = 0;
  for (std::int64_t channel = 0; channel < padded; ++channel) {
    RoundedLine line;
    if (channel < channels && !Fit(epilogue, channel, levels).run(line)) {
      line.limit = -1;  // its bits are negative: always replayed
      ++without;
    }
    gains[channel] = line.gain, offsets[channel] = line.offset, limits[channel] = line.limit;
    bottoms[channel] = line.bottom, tops[channel] = line.top;
  }
  if (without * 8 > channels) return;
  epilogue.kind = EpilogueKind::rounded_lines;
  epilogue.slopes = std::move(gains), epilogue.offsets = std::move(offsets);
  epilogue.limits = std::move(limits);
  epilogue.bottoms = std::move(bottoms), epilogue.tops = std::move(tops);
}

}  // namespace anybit::lowbit
