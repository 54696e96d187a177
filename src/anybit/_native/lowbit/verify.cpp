// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "accumulators.hpp"
#include "damage.hpp"
#include "program.hpp"
#include "verify_blocks.hpp"
#include "verify_matmul.hpp"
#include "window_taps.hpp"

namespace anybit::lowbit {

namespace {

// Limit of elements per row, which bounds the memory that a damaged program can request.
constexpr std::int64_t most_elements = std::int64_t{1} << 28;
// Limit of codes; sums of products are checked per channel.
constexpr std::int64_t largest_code = std::int64_t{1} << 24;
// Limit of the work of a product whose views may repeat few elements.
constexpr std::int64_t most_multiplications = std::int64_t{1} << 44;

template <class Shaped>
void verify_sizes(const Shaped& shaped) {
  need(shaped.height, 1, most_along_axis, "the height");
  need(shaped.width, 1, most_along_axis, "the width");
  need(shaped.channels, 1, most_along_axis, "the number of channels");
  need(shaped.height * shaped.width, 1, most_elements, "the number of elements");
  need(shaped.elements(), 1, most_elements, "the number of elements");
}

void verify_port(const Port& port) {
  verify_sizes(port);
  need(port.channels_first, 0, 1, "channels_first");
  need(static_cast<std::int64_t>(port.sizes.size()), 0, max_rank - 1, "the number of sizes");
  std::int64_t elements = 1;
  for (const std::int32_t size : port.sizes) {
    need(size, 1, most_elements, "a size");
    elements *= size;
    need(elements, 1, most_elements, "the product of the sizes");
  }
  need(elements, port.elements(), port.elements(), "the product of the sizes");
}

void verify_tensor(const Tensor& tensor) {
  verify_sizes(tensor);
  need(tensor.levels, 1, most_levels, "levels");
  need(tensor.step, 1, largest_code, "step");
  need(tensor.lowest, -largest_code, largest_code, "lowest");
  need(tensor.lowest + tensor.step * (tensor.levels - 1), -largest_code, largest_code,
       "the highest code");
}

template <class First, class Second>
void need_same_sizes(const First& first, const Second& second) {
  if (first.height != second.height || first.width != second.width ||
      first.channels != second.channels)
    refuse("source and target differ in their sizes");
}

void need_same_codes(const Tensor& source, const Tensor& target) {
  if (!source.has_codes_of(target)) refuse("source and target differ in their codes");
}

constexpr std::int64_t largest_in_window = std::int64_t{1} << 20;

void verify_axis(std::int64_t size, std::int64_t windows, std::int64_t kernel, std::int64_t stride,
                 std::int64_t dilation, std::int64_t pads) {
  const std::int64_t covered = (kernel - 1) * dilation + 1, padded = size + pads;
  if (covered > padded)
    refuse("a window of " + text(covered) + " over " + text(padded) + " elements");
  const std::int64_t fitting = (padded - covered) / stride + 1;
  need(windows, fitting, fitting, "the number of windows");
}

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

// Throws unless numbers ascend in each row of `count`.
void need_ascending(Integers numbers, std::int64_t count, const std::string& name) {
  for (std::size_t i = 1; i < numbers.size(); ++i)
    if (i % static_cast<std::size_t>(count) != 0 && numbers[i] < numbers[i - 1])
      refuse(name + " descend");
}

void verify_epilogue(const Thresholds& epilogue, std::int64_t channels, std::int64_t levels) {
  need_size(epilogue.directions.size(), channels, "directions");
  for (const std::int32_t direction : epilogue.directions)
    if (direction != 1 && direction != -1) refuse("a direction is " + text(direction));
  need_size(epilogue.thresholds.size(), channels * (levels - 1), "thresholds");
  need_ascending(epilogue.thresholds, levels - 1, "thresholds");
}

void verify_epilogue(const Affine& epilogue, std::int64_t channels, std::int64_t) {
  need_size(epilogue.gains.size(), channels, "gains");
  need_size(epilogue.offsets.size(), channels, "offsets");
  for (const Floats& numbers : {epilogue.gains, epilogue.offsets})
    for (const float number : numbers)
      if (!std::isfinite(number)) refuse("a gain or an offset is not finite");
  need(epilogue.shift, -most_shift, most_shift, "the shift");
}

void verify_epilogue(const Table& epilogue, std::int64_t channels, std::int64_t levels) {
  need_size(epilogue.first.size(), channels, "first");
  if (epilogue.entries.empty() || epilogue.entries.size() % static_cast<std::size_t>(channels) != 0)
    refuse(text(static_cast<std::int64_t>(epilogue.entries.size())) + " entries for " +
           text(channels) + " channels");
  need_within(epilogue.entries, 0, levels - 1, "an entry");
}

void verify_steps(const std::vector<Step>& steps, std::int64_t channels) {
  for (const Step& step : steps) {
    need(step.operation, 0, std::size(operation_names) - 1, "an operation");
    need_size(step.operands.size(), 1, channels, "operands");
  }
}

void verify_epilogue(const Arithmetic& epilogue, std::int64_t channels, std::int64_t) {
  need_size(epilogue.scales.size(), channels, "scales");
  verify_steps(epilogue.steps, channels);
}

void verify_epilogue(const Rounded& epilogue, std::int64_t channels, std::int64_t) {
  need_size(epilogue.scales.size(), channels, "scales");
  verify_steps(epilogue.steps, channels);
  need(epilogue.shift, -most_shift, most_shift, "the shift");
}

// No intermediate result exceeds 64 bits: accumulators and multipliers have 32.
void verify_epilogue(const Scaled& epilogue, std::int64_t channels, std::int64_t levels) {
  need_size(epilogue.multipliers.size(), channels, "multipliers");
  need_size(epilogue.terms.size(), 2 * channels, "terms");
  need_size(epilogue.right_shifts.size(), channels, "right_shifts");
  need_within(epilogue.right_shifts, 0, most_right_shift, "a right shift");
  for (std::size_t channel = 0; channel < epilogue.multipliers.size(); ++channel)
    need(epilogue.term(channel), -most_term, most_term, "a term");
  if (!epilogue.late.empty()) need_size(epilogue.late.size(), (channels * levels + 7) / 8, "late");
}

void verify_epilogue(const Piecewise& epilogue, std::int64_t channels, std::int64_t levels) {
  const auto entries = static_cast<std::int64_t>(epilogue.entries.size());
  if (entries % channels != 0)
    refuse(text(entries) + " entries for " + text(channels) + " channels");
  const std::int64_t pieces = entries / channels;
  need(pieces, 1, most_pieces, "the number of pieces");
  need_size(epilogue.starts.size(), channels * (pieces - 1), "starts");
  need_ascending(epilogue.starts, pieces - 1, "starts");
  need_within(epilogue.entries, 0, levels - 1, "an entry");
}

// Throws unless a table has an entry for every sum of the channel, and a threshold can exceed all
// sums of a `Scaled`.
void verify_sums(const Epilogue& epilogue, std::int64_t channels, std::int64_t channel,
                 const Sums& sums) {
  if (std::holds_alternative<Scaled>(epilogue) &&
      std::max(sums.highest, -sums.lowest) >= largest_sum)
    refuse("accumulators of channel " + text(channel) + " reach the largest threshold");
  const auto* const table = std::get_if<Table>(&epilogue);
  if (table == nullptr) return;
  const std::int64_t first = table->first[static_cast<std::size_t>(channel)];
  const auto length = static_cast<std::int64_t>(table->entries.size()) / channels;
  if (sums.lowest < first || sums.highest >= first + length)
    refuse("channel " + text(channel) + " has accumulators from " + text(sums.lowest) + " to " +
           text(sums.highest) + ", its table those from " + text(first) + " to " +
           text(first + length - 1));
}

// Throws unless the number of windows over `from` equals the number of pixels of the target.
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

// Throws unless the product stays within its operands, its sums within int32, and its results
// within [0, levels) of the target; an `Arithmetic` has no levels.
template <class Target>
void verify_product(const Product& at, const Tensor& from, const Target& to, std::int64_t levels) {
  verify_window(at.window, from, to);
  verify_weights(at, from, to);
  std::visit([&](const auto& epilogue) { verify_epilogue(epilogue, to.channels, levels); },
             at.epilogue);
  const std::int64_t largest = from.step * (from.levels - 1) + std::abs(from.lowest);
  Accumulators accumulators(at, from, to);
  for (std::int64_t channel = 0; channel < to.channels; ++channel) {
    const Sums sums = accumulators.next();
    // Kernels sum indices; the lowest code enters as a constant.
    if (sums.magnitude > largest_sum / std::max<std::int64_t>(largest, 1))
      refuse("accumulators of channel " + text(channel) + " go beyond 32 bits");
    verify_sums(at.epilogue, to.channels, channel, sums);
  }
}

// Throws unless a product of two tensors stays within its operands and its sums within 31 bits, and
// its results within [0, levels) of the target; an `Arithmetic` has no levels.
template <class Target>
void verify_product(const MatMul& at, const Tensor& first, const Tensor& second, const Target& to,
                    std::int64_t levels) {
  const Sums sums = verify_operands(at, first, second);
  const std::int64_t pixels = at.merges != 0 ? at.rows : at.groups * at.rows;
  const std::int64_t channels = at.merges != 0 ? at.groups * at.columns : at.columns;
  need(to.height * to.width, pixels, pixels, "the number of pixels");
  need(to.channels, channels, channels, "the number of channels");
  need(to.elements() * at.depth, 1, most_multiplications, "the number of multiplications");
  std::visit([&](const auto& epilogue) { verify_epilogue(epilogue, channels, levels); },
             at.epilogue);
  for (std::int64_t channel = 0; channel < channels; ++channel)
    verify_sums(at.epilogue, channels, channel, sums);
}

class Verification {
 public:
  explicit Verification(const Program& program)
      : program_(program),
        floats_(program.floats.size() + program.outputs.size()),
        written_(program.tensors.size()),
        filled_(program.tensors.size()) {}

  void run() {
    need(static_cast<std::int64_t>(program_.inputs.size()), 1, most_ports, "the number of inputs");
    need(static_cast<std::int64_t>(program_.outputs.size()), 1, most_ports,
         "the number of outputs");
    need(static_cast<std::int64_t>(program_.instructions.size()), 0, most_instructions,
         "the number of instructions");
    for (const Port& port : program_.inputs) verify_port(port);
    for (const Port& port : program_.outputs) verify_port(port);
    for (const Tensor& tensor : program_.tensors) verify_tensor(tensor);
    for (const FloatTensor& tensor : program_.floats) verify_sizes(tensor);
    for (std::size_t i = 0; i < program_.instructions.size(); ++i)
      std::visit([&](const auto& instruction) { located(i, instruction); },
                 program_.instructions[i]);
    for (std::size_t i = program_.floats.size(); i < floats_.size(); ++i)
      if (!floats_[i]) refuse("an output is never written");
  }

 private:
  static constexpr std::int64_t most_ports = 4096;
  static constexpr std::int64_t most_steps = 1024;
  // Limit for the memory planner, which takes quadratic time.
  static constexpr std::int64_t most_instructions = 1 << 15;

  // Channel ranges of a tensor that gathers have filled, by their ends.
  struct Filled {
    std::map<std::int64_t, std::int64_t> ends;
    std::int64_t channels = 0;
  };

  template <class Kind>
  void located(std::size_t place, const Kind& instruction) {
    try {
      verify(instruction);
    } catch (const Error& error) {
      throw Error(error.kind, "instruction " + std::to_string(place) + " (" +
                                  std::string(Kind::name) + "): " + error.what());
    }
  }

  // Returns the sizes of floats that may be read: of an input, or of floats that are written
  // already.
  FloatTensor float_source(std::int64_t i) const {
    const auto inputs = static_cast<std::int64_t>(program_.inputs.size());
    need(i, 0, inputs + static_cast<std::int64_t>(floats_.size()) - 1, "the number of the floats");
    if (i >= inputs && !floats_[static_cast<std::size_t>(i - inputs)])
      refuse("floats " + text(i) + " are read before they are written");
    return sizes_of(program_, lowbit::float_source(program_, i));
  }

  FloatTensor float_target(std::int64_t i) {
    need(i, 0, static_cast<std::int64_t>(floats_.size()) - 1, "the number of the floats");
    if (floats_[static_cast<std::size_t>(i)]) refuse("floats " + text(i) + " are written twice");
    floats_[static_cast<std::size_t>(i)] = true;
    return sizes_of(program_, lowbit::float_target(program_, i));
  }

  const Tensor& tensor(std::int64_t i) const {
    need(i, 0, static_cast<std::int64_t>(program_.tensors.size()) - 1, "the number of the tensor");
    return program_.tensors[static_cast<std::size_t>(i)];
  }

  const Tensor& source(std::int64_t i) {
    const Tensor& operand = tensor(i);
    if (!written_[static_cast<std::size_t>(i)])
      refuse("tensor " + text(i) + " is read before it is written");
    return operand;
  }

  const Tensor& target(std::int64_t i) {
    const Tensor& operand = tensor(i);
    if (written_[static_cast<std::size_t>(i)] || filled_[static_cast<std::size_t>(i)].channels > 0)
      refuse("tensor " + text(i) + " is written twice");
    written_[static_cast<std::size_t>(i)] = true;
    return operand;
  }

  void verify(const Quantize& at) {
    const FloatTensor floats = float_source(at.source);
    const Tensor& codes = target(at.target);
    need_same_sizes(floats, codes);
    need_size(at.directions.size(), 1, codes.channels, "directions");
    for (const std::int32_t direction : at.directions)
      if (direction != 1 && direction != -1) refuse("a direction is " + text(direction));
    const std::int64_t count = codes.levels - 1;
    need_size(at.thresholds.size(), count, codes.channels, "thresholds");
    for (std::size_t i = 0; i < at.thresholds.size(); ++i) {
      if (std::isnan(at.thresholds[i])) refuse("a threshold is NaN");
      if (i % static_cast<std::size_t>(count) != 0 && at.thresholds[i] < at.thresholds[i - 1])
        refuse("thresholds descend");
    }
    need(at.nan, -1, codes.levels - 1, "the index of NaN");
    for (const Floats& numbers : {at.factors, at.offsets}) {
      if (numbers.empty()) continue;
      need_size(numbers.size(), codes.channels, "factors or offsets");
      need_size(at.directions.size(), 1, "directions");
      need_size(at.thresholds.size(), count, "thresholds");
      for (const float number : numbers)
        if (!std::isfinite(number)) refuse("a factor or an offset is not finite");
    }
    for (const float factor : at.factors)
      if (factor == 0) refuse("a factor is 0");
  }

  void verify(const Product& at) {
    const Tensor& codes = source(at.source);
    if (std::holds_alternative<Arithmetic>(at.epilogue))
      verify_product(at, codes, float_target(at.target), 0);
    else verify_product(at, codes, tensor(at.target), target(at.target).levels);
  }

  template <IsBlockProduct Kind>
  void verify(const Kind& at) {
    const Tensor& from = source(at.source);
    if (at.has_zero()) verify_statistic(from, float_source(at.zero), "the zero");
    else need(at.zero, -1, -1, "the zero");
    const FloatTensor to = float_target(at.target);
    if (from.height != to.height || from.width != to.width)
      refuse("source and target differ in their sizes");
    verify_blocks(at, from, to.channels);
  }

  void verify(const MatMul& at) {
    const Tensor &first = source(at.first), &second = source(at.second);
    if (std::holds_alternative<Arithmetic>(at.epilogue))
      verify_product(at, first, second, float_target(at.target), 0);
    else verify_product(at, first, second, tensor(at.target), target(at.target).levels);
  }

  void verify(const Softmax& at) { verify_rows(at); }

  void verify(const LayerNorm& at) {
    const std::int64_t channels = verify_rows(at);
    need_size(at.gains.size(), channels, "gains");
    need_size(at.offsets.size(), channels, "offsets");
    need_size(at.epsilon.size(), 1, "epsilon");
  }

  void verify(const SpatialMean& at) {
    const FloatTensor from = float_source(at.source), to = float_target(at.target);
    need(to.height * to.width, 1, 1, "the number of pixels of the target");
    need(to.channels, from.channels, from.channels, "the number of channels");
  }

  // Returns the channels of a function of all channels of a pixel, which are contiguous.
  template <class Kind>
  std::int64_t verify_rows(const Kind& at) {
    const FloatTensor from = float_source(at.source), to = float_target(at.target);
    need_same_sizes(from, to);
    for (const FloatNumber& number :
         {lowbit::float_source(program_, at.source), lowbit::float_target(program_, at.target)}) {
      if (number.kind == FloatNumber::Kind::inner) continue;
      const bool is_input = number.kind == FloatNumber::Kind::input;
      const Port& port = (is_input ? program_.inputs : program_.outputs)[number.index];
      if (port.channels_first != 0 && port.height * port.width > 1)
        refuse("the channels of its port come first");
    }
    return to.channels;
  }

  void verify(const MaxPool& at) {
    const Tensor &from = source(at.source), &to = target(at.target);
    need_same_codes(from, to);
    need(to.channels, from.channels, from.channels, "the number of channels");
    verify_window(at.window, from, to);
    const Window& w = at.window;
    verify_taken(from.height, to.height, w.kernel_height, w.stride_height, w.dilation_height,
                 w.pad_top);
    verify_taken(from.width, to.width, w.kernel_width, w.stride_width, w.dilation_width,
                 w.pad_left);
  }

  // Throws unless every window has an element inside the tensor, along one axis.
  static void verify_taken(std::int64_t size, std::int64_t windows, std::int64_t kernel,
                           std::int64_t stride, std::int64_t dilation, std::int64_t pad) {
    const auto look = [&](std::int64_t window) {
      if (Taps(window * stride - pad, kernel, dilation, size).empty())
        refuse("a window of a pooling is empty");
    };
    // Of the windows that begin inside the tensor, the last one has the fewest elements.
    for (std::int64_t i = 0; i < windows && i * stride < pad; ++i) look(i);
    look(windows - 1);
  }

  void verify(const Lookup& at) {
    const Tensor &from = source(at.source), &to = target(at.target);
    need_same_sizes(from, to);
    need_size(at.entries.size(), from.levels, from.channels, "entries");
    need_within(at.entries, 0, to.levels - 1, "an entry");
  }

  void verify(const Combine& at) {
    const Tensor& to = pair(at);
    const std::int64_t levels = tensor(at.first).levels * tensor(at.second).levels;
    need_size(at.entries.size(), levels, to.channels, "entries");
    need_within(at.entries, 0, to.levels - 1, "an entry");
  }

  void verify(const Elementwise& at) {
    const FloatTensor first = float_source(at.first);
    FloatTensor second{1, 1, 1};
    if (at.has_second()) second = float_source(at.second);
    else need(at.second, -1, -1, "the second operand");
    const FloatTensor to = float_target(at.target);
    need_same_sizes(first, to);
    const bool one_pixel = second.height == 1 && second.width == 1;
    if ((!one_pixel && (second.height != to.height || second.width != to.width)) ||
        (second.channels != to.channels && second.channels != 1))
      refuse("the second operand and the target differ in their sizes");
    need(at.operation, 0, static_cast<std::int64_t>(Operation::minimum), "the operation");
    need(static_cast<std::int64_t>(at.steps.size()), 0, most_steps, "the number of steps");
    verify_steps(at.steps, to.channels);
  }

  void verify(const DynamicScale& at) {
    const FloatTensor from = float_source(at.source);
    verify_statistic(from, float_target(at.target), "the target");
    need(at.asymmetric, 0, 1, "asymmetric");
    for (const Floats& numbers : {at.steps, at.least, at.most}) {
      need_size(numbers.size(), 1, "steps, least and most");
      if (!std::isfinite(numbers[0]) || !(numbers[0] > 0))
        refuse("steps, least or most is not positive and finite");
    }
  }

  void verify(const DynamicZero& at) {
    const FloatTensor from = float_source(at.source), scale = float_source(at.scale);
    verify_statistic(from, scale, "the scale");
    need_same_sizes(scale, float_target(at.target));
    need(at.lowest, -most_shift, most_shift, "the lowest zero");
    need(at.highest, at.lowest, most_shift, "the highest zero");
  }

  void verify(const DynamicQuantize& at) {
    const FloatTensor from = float_source(at.source), scale = float_source(at.scale);
    verify_statistic(from, scale, "the scale");
    if (at.has_zero()) need_same_sizes(scale, float_source(at.zero));
    else need(at.zero, -1, -1, "the zero");
    const Tensor& to = target(at.target);
    if (from.height != to.height || from.width != to.width)
      refuse("source and target differ in their sizes");
    need(to.channels, from.channels, at.has_zero() ? most_along_axis : from.channels,
         "the number of channels");
    need(to.step, 1, 1, "step");
    need(to.lowest, -most_shift, most_shift, "lowest");
    need(at.rounds_first, 0, 1, "rounds_first");
    if (at.channels.empty()) return;
    need_size(at.channels.size(), to.channels, "channels");
    need_within(at.channels, -1, from.channels - 1, "a channel");
  }

  // Throws unless there is one number for each pixel of floats, or one for all of them.
  template <class Source>
  static void verify_statistic(const Source& from, const FloatTensor& to, const char* what) {
    need(to.channels, 1, 1, what);
    const bool one_pixel = to.height == 1 && to.width == 1;
    if (!one_pixel && (to.height != from.height || to.width != from.width))
      refuse(std::string(what) + " and the source differ in their sizes");
  }

  void verify(const Add& at) { verify_arithmetic(at); }
  void verify(const Multiply& at) { verify_arithmetic(at); }

  template <class Kind>
  void verify_arithmetic(const Kind& at) {
    const Tensor& to = pair(at);
    need_size(at.zeros.size(), 2, "zeros");
    need_within(at.zeros, -most_shift, most_shift, "a zero");
    need_size(at.gains.size(), 2, "gains");
    need_size(at.offset.size(), 1, "the offset");
    need_size(at.divisor.size(), 1, "the divisor");
    if (!(at.divisor[0] > 0)) refuse("the divisor is not positive");
    need(at.shift, -most_shift, most_shift, "the shift");
    need(at.lowest, 0, to.levels - 1, "the lowest index");
    need(at.highest, at.lowest, to.levels - 1, "the highest index");
  }

  // Returns the target of an elementwise instruction with two sources.
  template <class Kind>
  const Tensor& pair(const Kind& at) {
    const Tensor &first = source(at.first), &second = source(at.second), &to = target(at.target);
    for (const Tensor* operand : {&first, &second}) {
      if (operand->height != to.height || operand->width != to.width ||
          (operand->channels != to.channels && operand->channels != 1))
        refuse("a source and the target differ in their sizes");
    }
    if (first.channels != to.channels && second.channels != to.channels)
      refuse("no source has the channels of the target");
    return to;
  }

  void verify(const Gather& at) {
    const Tensor &from = source(at.source), &to = tensor(at.target);
    need_same_codes(from, to);
    need_size(at.rows.size(), to.height, "rows");
    need_size(at.columns.size(), to.width, "columns");
    const auto channels = static_cast<std::int64_t>(at.channels.size());
    need(channels, 1, to.channels, "the number of channels");
    need(at.first_channel, 0, to.channels - channels, "the first channel");
    need_within(at.rows, -1, from.height - 1, "a row");
    need_within(at.columns, -1, from.width - 1, "a column");
    need_within(at.channels, -1, from.channels - 1, "a channel");
    bool fills = false;
    for (const Integers& indices : {at.rows, at.columns, at.channels})
      for (const std::int32_t index : indices) fills = fills || index < 0;
    if (fills) need(at.fill, 0, to.levels - 1, "the index that fills");
    fill(at.target, at.first_channel, channels);
  }

  // Marks channels of a tensor as filled; the tensor counts as written when all are.
  void fill(std::int64_t number, std::int64_t first, std::int64_t channels) {
    const auto i = static_cast<std::size_t>(number);
    if (written_[i]) refuse("tensor " + text(number) + " is written twice");
    Filled& filled = filled_[i];
    const auto next = filled.ends.upper_bound(first);
    if (next != filled.ends.end() && next->second < first + channels)
      refuse("channel " + text(std::max(first, next->second)) + " of tensor " + text(number) +
             " is written twice");
    filled.ends.emplace(first + channels, first);
    filled.channels += channels;
    written_[i] = filled.channels == program_.tensors[i].channels;
  }

  void verify(const Reshape& at) {
    const Tensor &from = source(at.source), &to = target(at.target);
    need_same_codes(from, to);
    need(to.elements(), from.elements(), from.elements(), "the number of elements");
    need(at.source_channels_first, 0, 1, "source_channels_first");
    need(at.target_channels_first, 0, 1, "target_channels_first");
  }

  void verify(const Dequantize& at) {
    const Tensor& from = source(at.source);
    need_same_sizes(from, float_target(at.target));
    need_size(at.values.size(), from.levels, from.channels, "values");
  }

  const Program& program_;
  std::vector<bool> floats_, written_;
  std::vector<Filled> filled_;
};

}  // namespace

void verify(const Program& program) { Verification(program).run(); }

}  // namespace anybit::lowbit
