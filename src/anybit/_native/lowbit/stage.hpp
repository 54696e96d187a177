// SPDX-License-Identifier: Apache-2.0
// Stages: planned instructions with their memory and kernels.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "elements.hpp"
#include "packed_product.hpp"
#include "program.hpp"
#include "spread_product.hpp"
#include "storage.hpp"

namespace anybit::lowbit {

// Memory of a run of some rows, counted from 0.
struct Memory {
  std::byte* tensors = nullptr;
  const float* const* inputs = nullptr;
  float* const* outputs = nullptr;
  std::int64_t first_row = 0;  // of the run, in inputs and outputs
  bool backwards = false;      // whether to read large weights in reverse order
  std::atomic<bool>* refused_nan = nullptr;
};

// A tensor in the memory of a run.
struct Place {
  Storage storage;
  std::int64_t offset = 0;

  std::byte* row(const Memory& memory, std::int64_t row) const {
    return memory.tensors + offset + row * storage.row;
  }
};

// An array of float32: an input or an output of the network, or in the memory of a run.
struct FloatPlace {
  FloatPlace() = default;
  FloatPlace(const Port& port, const FloatNumber& number_)
      : number(number_), strides{port.elements(), port.channels, 1} {
    // One channel, or one pixel, lies in both orders alike.
    if (port.channels_first && port.height * port.width > 1 && port.channels > 1)
      strides = {port.elements(), 1, port.height * port.width};
  }
  explicit FloatPlace(const FloatTensor& tensor)
      : number{FloatNumber::Kind::inner, 0},
        strides{(tensor.elements() + aligned - 1) / aligned * aligned, tensor.channels, 1} {}

  // Whether channels are contiguous.
  bool channels_last() const { return strides.channel == 1; }
  std::int64_t row_bytes() const { return strides.row * static_cast<std::int64_t>(sizeof(float)); }

  // Returns the first element of a row of a run.
  const float* read(const Memory& memory, std::int64_t row) const {
    if (number.kind != FloatNumber::Kind::input) return write(memory, row);
    return memory.inputs[number.index] + (memory.first_row + row) * strides.row;
  }
  float* write(const Memory& memory, std::int64_t row) const {
    if (number.kind == FloatNumber::Kind::output)
      return memory.outputs[number.index] + (memory.first_row + row) * strides.row;
    return reinterpret_cast<float*>(memory.tensors + offset) + row * strides.row;
  }

  static constexpr std::int64_t aligned = alignment / sizeof(float);
  FloatNumber number;
  FloatStrides strides;
  std::int64_t offset = 0;  // in the memory of a run
};

// The second operand of an Elementwise: its place, and whether it is repeated.
struct FloatOperand {
  FloatPlace place;
  bool is_present = false, one_pixel = false, one_channel = false;
};

// An array of float32 and its sizes.
struct SizedFloats {
  FloatPlace place;
  FloatTensor sizes;
};

class Stage {
 public:
  virtual ~Stage() = default;

  // Fills a part of the target. Disjoint parts may run concurrently. Does not throw.
  virtual void run(const Memory& memory, const Part& part) const = 0;

  // Estimated time of one thread for a row.
  std::int64_t nanoseconds() const;

  // For reports.
  virtual std::string kernel() const = 0;
  virtual std::int64_t bytes() const { return 0; }

  std::string_view name;
  std::int64_t lines = 1;       // of the target; parts may split them
  std::int64_t line_grain = 1;  // lines that are computed together
  std::int64_t channels = 1;
  bool by_channels = false;  // whether parts may split the channels, too
  std::int64_t multiplications = 0;
  std::int64_t channels_of_sum = 1;  // source channels that contribute to one element
  std::int64_t elements = 0;         // of the target, in one row
  const Place* source = nullptr;     // null: a port
  const Place* target = nullptr;     // null: an output
};

using Stages = std::vector<std::unique_ptr<Stage>>;

// One factory per instruction. Places belong to the plan, and outlive the stages.
std::unique_ptr<Stage> make_stage(const Quantize& at, const FloatPlace& source,
                                  const Tensor& tensor, const Place& target,
                                  const ElementLoops& loops);
std::unique_ptr<Stage> make_stage(const ProductTask& task, const Place& source, const Place& target,
                                  Level level);
// `arrays` are those of the steps of the task.
std::unique_ptr<Stage> make_stage(const ProductTask& task, const Place& source,
                                  const FloatPlace& target, std::vector<FloatPlace> arrays,
                                  Level level);
// The same of a product without the zeros that a Gather inserts: the source is that of the Gather.
std::unique_ptr<Stage> make_stage(const ProductTask& task, const SpreadProduct& spread,
                                  const Place& source, const Place& target, Level level);
std::unique_ptr<Stage> make_stage(const ProductTask& task, const SpreadProduct& spread,
                                  const Place& source, const FloatPlace& target,
                                  std::vector<FloatPlace> arrays, Level level);
// Returns the stage of an instruction that a product computes: it does nothing.
std::unique_ptr<Stage> make_empty_stage(std::string_view instruction);
std::unique_ptr<Stage> make_stage(const MaxPool& at, const Place& source, const Place& target,
                                  const ElementLoops& loops);
std::unique_ptr<Stage> make_stage(const Lookup& at, const Tensor& tensor, const Place& source,
                                  const Place& target, Level level);
std::unique_ptr<Stage> make_stage(const Combine& at, const Tensor& first, const Tensor& second,
                                  const Place& first_place, const Place& second_place,
                                  const Place& target, const ElementLoops& loops);
std::unique_ptr<Stage> make_stage(const Add& at, const Place& first, const Place& second,
                                  const Place& target, const ElementLoops& loops);
std::unique_ptr<Stage> make_stage(const Multiply& at, const Place& first, const Place& second,
                                  const Place& target, const ElementLoops& loops);
std::unique_ptr<Stage> make_stage(const Gather& at, const Place& source, const Place& target,
                                  const ElementLoops& loops);
std::unique_ptr<Stage> make_stage(const Reshape& at, const Place& source, const Place& target);
std::unique_ptr<Stage> make_stage(const Dequantize& at, const Tensor& tensor, const Place& source,
                                  const FloatPlace& target, const ElementLoops& loops);
std::unique_ptr<Stage> make_stage(const Elementwise& at, const FloatTensor& tensor,
                                  const FloatPlace& first, const FloatOperand& second,
                                  const FloatPlace& target, const ElementLoops& loops);

std::unique_ptr<Stage> make_stage(const DynamicScale& at, const SizedFloats& source,
                                  const SizedFloats& target, const ElementLoops& loops);
std::unique_ptr<Stage> make_stage(const DynamicZero& at, const SizedFloats& source,
                                  const FloatPlace& scale, const SizedFloats& target,
                                  const ElementLoops& loops);
std::unique_ptr<Stage> make_stage(const DynamicQuantize& at, const SizedFloats& source,
                                  const SizedFloats& scale, const FloatPlace& zero,
                                  const Tensor& tensor, const Place& target,
                                  const ElementLoops& loops);

// A verified MatMul instruction with its operands.
struct MatMulTask {
  const MatMul* product = nullptr;
  Tensor first, second;
  const Place *first_place = nullptr, *second_place = nullptr;
  std::int64_t most_bytes = 0;  // limit of the constants
};
std::unique_ptr<Stage> make_stage(const MatMulTask& task, const Tensor& tensor, const Place& target,
                                  Level level);
std::unique_ptr<Stage> make_stage(const MatMulTask& task, const FloatTensor& tensor,
                                  const FloatPlace& target, Level level);
std::unique_ptr<Stage> make_stage(const Softmax& at, const FloatTensor& tensor,
                                  const FloatPlace& source, const FloatPlace& target,
                                  const ElementLoops& loops);
std::unique_ptr<Stage> make_stage(const LayerNorm& at, const FloatTensor& tensor,
                                  const FloatPlace& source, const FloatPlace& target,
                                  const ElementLoops& loops);
std::unique_ptr<Stage> make_stage(const SpatialMean& at, const SizedFloats& source,
                                  const FloatPlace& target, const ElementLoops& loops);

// A verified BlockProduct or AsymmetricBlockProduct instruction with its operands.
struct BlockTask {
  BlockProduct product;
  Bytes zero_points;  // of blocks; empty where `lowest` takes their place
  Tensor tensor;
  const Place* source = nullptr;
  FloatPlace zero;
  bool one_zero = false;        // for all pixels of a row
  std::int64_t most_bytes = 0;  // limit of the packed size
};
std::unique_ptr<Stage> make_stage(const BlockTask& task, const SizedFloats& target, Level level);

// Clears the border of a target with the first part of a row.
inline void start_rows(const Place& target, const Memory& memory, const Part& part) {
  if (part.first_line == 0 && part.first_channel == 0 && !target.storage.border.empty())
    clear_border(target.storage, target.row(memory, 0), part.first_row, part.last_row);
}

}  // namespace anybit::lowbit
