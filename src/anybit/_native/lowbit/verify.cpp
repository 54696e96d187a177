// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "damage.hpp"
#include "program.hpp"
#include "taps.hpp"
#include "verify_product.hpp"

namespace anybit::lowbit {

namespace {

// A row of a tensor has no more elements: what a damaged program makes us ask for stays bounded.
constexpr std::int64_t most_elements = std::int64_t{1} << 28;
constexpr std::int64_t most_along_axis = std::int64_t{1} << 24;
// Codes are small integers; sums of their products are checked one by one.
constexpr std::int64_t largest_code = std::int64_t{1} << 24;

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

class Verification {
 public:
  explicit Verification(const Program& program)
      : program_(program),
        outputs_(program.outputs.size()),
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
    for (std::size_t i = 0; i < program_.instructions.size(); ++i)
      std::visit([&](const auto& each) { located(i, each); }, program_.instructions[i]);
    for (const bool written : outputs_)
      if (!written) refuse("an output is never written");
  }

 private:
  static constexpr std::int64_t most_ports = 4096;
  // Where each tensor lies is found by looking at all others.
  static constexpr std::int64_t most_instructions = 1 << 15;

  // The channels of a tensor that gathers have filled: ranges, by their ends.
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

  // A port that is read: an input, or an output that has been written.
  const Port& readable(std::int64_t i) const {
    const auto inputs = static_cast<std::int64_t>(program_.inputs.size());
    const auto outputs = static_cast<std::int64_t>(program_.outputs.size());
    need(i, 0, inputs + outputs - 1, "the number of the port");
    if (i < inputs) return program_.inputs[static_cast<std::size_t>(i)];
    const auto output = static_cast<std::size_t>(i - inputs);
    if (!outputs_[output]) refuse("output " + text(i - inputs) + " is read before it is written");
    return program_.outputs[output];
  }

  const Port& output(std::int64_t i) {
    need(i, 0, static_cast<std::int64_t>(program_.outputs.size()) - 1, "the number of the output");
    if (outputs_[static_cast<std::size_t>(i)]) refuse("output " + text(i) + " is written twice");
    outputs_[static_cast<std::size_t>(i)] = true;
    return program_.outputs[static_cast<std::size_t>(i)];
  }

  const Tensor& tensor(std::int64_t i) const {
    need(i, 0, static_cast<std::int64_t>(program_.tensors.size()) - 1, "the number of the tensor");
    return program_.tensors[static_cast<std::size_t>(i)];
  }

  const Tensor& source(std::int64_t i) {
    const Tensor& found = tensor(i);
    if (!written_[static_cast<std::size_t>(i)])
      refuse("tensor " + text(i) + " is read before it is written");
    return found;
  }

  const Tensor& target(std::int64_t i) {
    const Tensor& found = tensor(i);
    if (written_[static_cast<std::size_t>(i)] || filled_[static_cast<std::size_t>(i)].channels > 0)
      refuse("tensor " + text(i) + " is written twice");
    written_[static_cast<std::size_t>(i)] = true;
    return found;
  }

  void verify(const Quantize& at) {
    const Port& port = readable(at.source);
    const Tensor& codes = target(at.target);
    need_same_sizes(port, codes);
    need_size(at.directions.size(), 1, codes.channels, "directions");
    for (const std::int32_t direction : at.directions)
      if (direction != 1 && direction != -1) refuse("a direction is " + text(direction));
    const std::int64_t each = codes.levels - 1;
    need_size(at.thresholds.size(), each, codes.channels, "thresholds");
    for (std::size_t i = 0; i < at.thresholds.size(); ++i) {
      if (std::isnan(at.thresholds[i])) refuse("a threshold is NaN");
      if (i % static_cast<std::size_t>(each) != 0 && at.thresholds[i] < at.thresholds[i - 1])
        refuse("thresholds descend");
    }
    need(at.nan, -1, codes.levels - 1, "the index of NaN");
    for (const Floats& numbers : {at.factors, at.offsets}) {
      if (numbers.empty()) continue;
      need_size(numbers.size(), codes.channels, "factors or offsets");
      need_size(at.directions.size(), 1, "directions");
      need_size(at.thresholds.size(), each, "thresholds");
      for (const float number : numbers)
        if (!std::isfinite(number)) refuse("a factor or an offset is not finite");
    }
    for (const float factor : at.factors)
      if (factor == 0) refuse("a factor is 0");
  }

  void verify(const Product& at) {
    const Tensor& codes = source(at.source);
    if (std::holds_alternative<Arithmetic>(at.tail))
      verify_product(at, codes, output(at.target), 0);
    else verify_product(at, codes, tensor(at.target), target(at.target).levels);
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

  // Along one axis, every window has an element that is inside the tensor.
  static void verify_taken(std::int64_t size, std::int64_t windows, std::int64_t kernel,
                           std::int64_t stride, std::int64_t dilation, std::int64_t pad) {
    const auto look = [&](std::int64_t window) {
      if (Taps(window * stride - pad, kernel, dilation, size).empty())
        refuse("a window of a pooling is empty");
    };
    // Of those that begin inside the tensor, the last one has the least.
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

  // The target of an instruction with two sources, whose elements are those of both.
  template <class Kind>
  const Tensor& pair(const Kind& at) {
    const Tensor &first = source(at.first), &second = source(at.second), &to = target(at.target);
    for (const Tensor* each : {&first, &second}) {
      if (each->height != to.height || each->width != to.width ||
          (each->channels != to.channels && each->channels != 1))
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

  // Notes that some channels of a tensor are there; all of them make it one that is written.
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
    need_same_sizes(from, output(at.target));
    need_size(at.values.size(), from.levels, from.channels, "values");
  }

  const Program& program_;
  std::vector<bool> outputs_, written_;
  std::vector<Filled> filled_;
};

}  // namespace

void verify(const Program& program) { Verification(program).run(); }

}  // namespace anybit::lowbit
