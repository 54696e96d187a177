// SPDX-License-Identifier: Apache-2.0
// Program of an integer region: the records of `anybit/compiler/program/program.py`, which
// documents them, as decoded from an encoded program. A test compares the two.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

namespace anybit::lowbit {

// Versions of programs that this library runs. Records with a `since` are not in earlier ones.
inline constexpr std::int64_t program_version = 8, first_version = 2;

inline constexpr std::int64_t most_levels = 256;
inline constexpr std::int64_t most_pieces = 512;
inline constexpr std::int64_t most_shift = std::int64_t{1} << 20;
inline constexpr std::int64_t most_right_shift = 51;
inline constexpr std::int64_t most_asymmetric_block = std::int64_t{1} << 14;
inline constexpr std::int64_t most_term = std::int64_t{1} << 62;

// Arrays are borrowed from the stores of the encoded program.
using Bytes = std::span<const std::uint8_t>;
using Integers = std::span<const std::int32_t>;
using Floats = std::span<const float>;

// Records visit their fields in the order of the encoding: visit(name, field).

struct Port {
  static constexpr std::string_view name = "Port";
  Integers sizes;
  std::int64_t height = 0, width = 0, channels = 0, channels_first = 0;

  void visit(auto&& field) {
    field("sizes", sizes), field("height", height), field("width", width);
    field("channels", channels), field("channels_first", channels_first);
  }
  std::int64_t elements() const { return height * width * channels; }
};

struct Tensor {
  static constexpr std::string_view name = "Tensor";
  std::int64_t height = 0, width = 0, channels = 0, lowest = 0, step = 0, levels = 0;

  void visit(auto&& field) {
    field("height", height), field("width", width), field("channels", channels);
    field("lowest", lowest), field("step", step), field("levels", levels);
  }
  std::int64_t elements() const { return height * width * channels; }
  bool has_codes_of(const Tensor& other) const {
    return lowest == other.lowest && step == other.step && levels == other.levels;
  }
};

struct FloatTensor {
  static constexpr std::string_view name = "FloatTensor";
  static constexpr std::int64_t since = 3;
  std::int64_t height = 0, width = 0, channels = 0;

  void visit(auto&& field) {
    field("height", height), field("width", width), field("channels", channels);
  }
  std::int64_t elements() const { return height * width * channels; }
};

struct Thresholds {
  static constexpr std::string_view name = "Thresholds";
  Integers directions, thresholds;

  void visit(auto&& field) { field("directions", directions), field("thresholds", thresholds); }
};

struct Affine {
  static constexpr std::string_view name = "Affine";
  Floats gains, offsets;
  std::int64_t shift = 0;

  void visit(auto&& field) {
    field("gains", gains), field("offsets", offsets), field("shift", shift);
  }
};

struct Table {
  static constexpr std::string_view name = "Table";
  Integers first;
  Bytes entries;

  void visit(auto&& field) { field("first", first), field("entries", entries); }
};

enum class Operation : std::uint8_t {
  add,
  subtract,
  subtract_from,
  multiply,
  divide,
  maximum,
  minimum,
  keep,
  add_kept,
  multiply_kept,
  sigmoid,
  gelu,
};
// The versions of programs from which there are a sigmoid and a GELU.
inline constexpr std::int64_t sigmoid_since = 5, gelu_since = 7;
inline constexpr std::string_view operation_names[] = {
    "ADD",     "SUBTRACT", "SUBTRACT_FROM", "MULTIPLY",      "DIVIDE",  "MAXIMUM",
    "MINIMUM", "KEEP",     "ADD_KEPT",      "MULTIPLY_KEPT", "SIGMOID", "GELU"};

struct Step {
  static constexpr std::string_view name = "Step";
  std::int64_t operation = 0;
  Floats operands;

  void visit(auto&& field) { field("operation", operation), field("operands", operands); }
  Operation kind() const { return static_cast<Operation>(operation); }
};

struct Arithmetic {
  static constexpr std::string_view name = "Arithmetic";
  Floats scales;
  std::vector<Step> steps;

  void visit(auto&& field) { field("scales", scales), field("steps", steps); }
};

struct Rounded {
  static constexpr std::string_view name = "Rounded";
  Floats scales;
  std::vector<Step> steps;
  std::int64_t shift = 0;

  void visit(auto&& field) {
    field("scales", scales), field("steps", steps), field("shift", shift);
  }
};

struct Scaled {
  static constexpr std::string_view name = "Scaled";
  static constexpr std::int64_t since = 3;
  Integers multipliers, terms;
  Bytes right_shifts, late;

  void visit(auto&& field) {
    field("multipliers", multipliers), field("terms", terms);
    field("right_shifts", right_shifts), field("late", late);
  }
  std::int64_t term(std::size_t channel) const {
    const auto low = static_cast<std::uint32_t>(terms[2 * channel]);
    return std::int64_t{terms[2 * channel + 1]} * (std::int64_t{1} << 32) + low;
  }
  bool is_late(std::size_t bit) const {
    return !late.empty() && (late[bit / 8] >> bit % 8 & 1) != 0;
  }
};

struct Piecewise {
  static constexpr std::string_view name = "Piecewise";
  static constexpr std::int64_t since = 3;
  Integers starts;
  Bytes entries;

  void visit(auto&& field) { field("starts", starts), field("entries", entries); }
};

// Positions in this list, and in that of instructions, are the numbers in an encoded program.
using Epilogue = std::variant<Thresholds, Affine, Table, Arithmetic, Rounded, Scaled, Piecewise>;

struct Window {
  static constexpr std::string_view name = "Window";
  std::int64_t kernel_height = 0, kernel_width = 0, stride_height = 0, stride_width = 0;
  std::int64_t dilation_height = 0, dilation_width = 0;
  std::int64_t pad_top = 0, pad_left = 0, pad_bottom = 0, pad_right = 0;

  void visit(auto&& field) {
    field("kernel_height", kernel_height), field("kernel_width", kernel_width);
    field("stride_height", stride_height), field("stride_width", stride_width);
    field("dilation_height", dilation_height), field("dilation_width", dilation_width);
    field("pad_top", pad_top), field("pad_left", pad_left);
    field("pad_bottom", pad_bottom), field("pad_right", pad_right);
  }
};

struct Quantize {
  static constexpr std::string_view name = "Quantize";
  std::int64_t source = 0, target = 0;
  Integers directions;
  Floats thresholds;
  std::int64_t nan = 0;
  Floats factors, offsets;

  void visit(auto&& field) {
    field("source", source), field("target", target), field("directions", directions);
    field("thresholds", thresholds), field("nan", nan), field("factors", factors);
    field("offsets", offsets);
  }
};

struct Product {
  static constexpr std::string_view name = "Product";
  std::int64_t source = 0, target = 0;
  Window window;
  std::int64_t groups = 0, weight_bits = 0;
  Bytes weights;
  Integers values;
  Epilogue epilogue;

  void visit(auto&& field) {
    field("source", source), field("target", target), field("window", window);
    field("groups", groups), field("weight_bits", weight_bits), field("weights", weights);
    field("values", values), field("epilogue", epilogue);
  }
};

struct MaxPool {
  static constexpr std::string_view name = "MaxPool";
  std::int64_t source = 0, target = 0;
  Window window;

  void visit(auto&& field) {
    field("source", source), field("target", target), field("window", window);
  }
};

struct Lookup {
  static constexpr std::string_view name = "Lookup";
  std::int64_t source = 0, target = 0;
  Bytes entries;

  void visit(auto&& field) {
    field("source", source), field("target", target), field("entries", entries);
  }
};

struct Combine {
  static constexpr std::string_view name = "Combine";
  std::int64_t first = 0, second = 0, target = 0;
  Bytes entries;

  void visit(auto&& field) {
    field("first", first), field("second", second), field("target", target);
    field("entries", entries);
  }
};

struct Gather {
  static constexpr std::string_view name = "Gather";
  std::int64_t source = 0, target = 0;
  Integers rows, columns, channels;
  std::int64_t first_channel = 0, fill = 0;

  void visit(auto&& field) {
    field("source", source), field("target", target), field("rows", rows);
    field("columns", columns), field("channels", channels);
    field("first_channel", first_channel), field("fill", fill);
  }
};

struct Reshape {
  static constexpr std::string_view name = "Reshape";
  std::int64_t source = 0, target = 0, source_channels_first = 0, target_channels_first = 0;

  void visit(auto&& field) {
    field("source", source), field("target", target);
    field("source_channels_first", source_channels_first);
    field("target_channels_first", target_channels_first);
  }
};

struct Dequantize {
  static constexpr std::string_view name = "Dequantize";
  std::int64_t source = 0, target = 0;
  Floats values;

  void visit(auto&& field) {
    field("source", source), field("target", target), field("values", values);
  }
};

struct Add {
  static constexpr std::string_view name = "Add";
  std::int64_t first = 0, second = 0, target = 0;
  Integers zeros;
  Floats gains, offset, divisor;
  std::int64_t shift = 0, lowest = 0, highest = 0;

  void visit(auto&& field) {
    field("first", first), field("second", second), field("target", target);
    field("zeros", zeros), field("gains", gains), field("offset", offset);
    field("divisor", divisor), field("shift", shift), field("lowest", lowest);
    field("highest", highest);
  }
};

struct Multiply {
  static constexpr std::string_view name = "Multiply";
  std::int64_t first = 0, second = 0, target = 0;
  Integers zeros;
  Floats gains, offset, divisor;
  std::int64_t shift = 0, lowest = 0, highest = 0;

  void visit(auto&& field) {
    field("first", first), field("second", second), field("target", target);
    field("zeros", zeros), field("gains", gains), field("offset", offset);
    field("divisor", divisor), field("shift", shift), field("lowest", lowest);
    field("highest", highest);
  }
};

struct Elementwise {
  static constexpr std::string_view name = "Elementwise";
  static constexpr std::int64_t since = 3;
  std::int64_t first = 0, second = 0, target = 0, operation = 0;
  std::vector<Step> steps;

  void visit(auto&& field) {
    field("first", first), field("second", second), field("target", target);
    field("operation", operation), field("steps", steps);
  }
  bool has_second() const { return second >= 0; }
};

struct DynamicScale {
  static constexpr std::string_view name = "DynamicScale";
  static constexpr std::int64_t since = 4;
  std::int64_t source = 0, target = 0, asymmetric = 0;
  Floats steps, least, most;

  void visit(auto&& field) {
    field("source", source), field("target", target), field("asymmetric", asymmetric);
    field("steps", steps), field("least", least), field("most", most);
  }
};

struct DynamicZero {
  static constexpr std::string_view name = "DynamicZero";
  static constexpr std::int64_t since = 4;
  std::int64_t source = 0, scale = 0, target = 0, lowest = 0, highest = 0;

  void visit(auto&& field) {
    field("source", source), field("scale", scale), field("target", target);
    field("lowest", lowest), field("highest", highest);
  }
};

struct DynamicQuantize {
  static constexpr std::string_view name = "DynamicQuantize";
  static constexpr std::int64_t since = 4;
  std::int64_t source = 0, scale = 0, zero = 0, target = 0, rounds_first = 0;
  Integers channels;

  void visit(auto&& field) {
    field("source", source), field("scale", scale), field("zero", zero), field("target", target);
    field("rounds_first", rounds_first), field("channels", channels);
  }
  bool has_zero() const { return zero >= 0; }
};

struct MatMul {
  static constexpr std::string_view name = "MatMul";
  static constexpr std::int64_t since = 4;
  std::int64_t first = 0, second = 0, target = 0;
  std::int64_t groups = 0, rows = 0, columns = 0, depth = 0;
  Integers first_view, second_view;
  std::int64_t merges = 0;
  Epilogue epilogue;

  void visit(auto&& field) {
    field("first", first), field("second", second), field("target", target);
    field("groups", groups), field("rows", rows), field("columns", columns);
    field("depth", depth), field("first_view", first_view), field("second_view", second_view);
    field("merges", merges), field("epilogue", epilogue);
  }
};

struct Softmax {
  static constexpr std::string_view name = "Softmax";
  static constexpr std::int64_t since = 4;
  std::int64_t source = 0, target = 0;

  void visit(auto&& field) { field("source", source), field("target", target); }
};

struct LayerNorm {
  static constexpr std::string_view name = "LayerNorm";
  static constexpr std::int64_t since = 4;
  std::int64_t source = 0, target = 0;
  Floats gains, offsets, epsilon;

  void visit(auto&& field) {
    field("source", source), field("target", target), field("gains", gains);
    field("offsets", offsets), field("epsilon", epsilon);
  }
};

struct SpatialMean {
  static constexpr std::string_view name = "SpatialMean";
  static constexpr std::int64_t since = 5;
  std::int64_t source = 0, target = 0;

  void visit(auto&& field) { field("source", source), field("target", target); }
};

struct BlockProduct {
  static constexpr std::string_view name = "BlockProduct";
  static constexpr std::int64_t since = 6;
  std::int64_t source = 0, zero = 0, target = 0, block = 0, lowest = 0, weight_bits = 0;
  Bytes weights;
  Floats scales;

  void visit(auto&& field) {
    field("source", source), field("zero", zero), field("target", target), field("block", block);
    field("lowest", lowest), field("weight_bits", weight_bits), field("weights", weights);
    field("scales", scales);
  }
  bool has_zero() const { return zero >= 0; }
};

struct AsymmetricBlockProduct {
  static constexpr std::string_view name = "AsymmetricBlockProduct";
  static constexpr std::int64_t since = 8;
  std::int64_t source = 0, zero = 0, target = 0, block = 0, weight_bits = 0;
  Bytes weights, zero_points;
  Floats scales;

  void visit(auto&& field) {
    field("source", source), field("zero", zero), field("target", target), field("block", block);
    field("weight_bits", weight_bits), field("weights", weights);
    field("zero_points", zero_points), field("scales", scales);
  }
  bool has_zero() const { return zero >= 0; }
};

template <class Record>
concept IsBlockProduct =
    std::is_same_v<Record, BlockProduct> || std::is_same_v<Record, AsymmetricBlockProduct>;

using Instruction =
    std::variant<Quantize, Product, MaxPool, Lookup, Combine, Gather, Reshape, Dequantize, Add,
                 Multiply, Elementwise, DynamicScale, DynamicZero, DynamicQuantize, MatMul, Softmax,
                 LayerNorm, SpatialMean, BlockProduct, AsymmetricBlockProduct>;

struct Program {
  static constexpr std::string_view name = "Program";
  std::vector<Port> inputs, outputs;
  std::vector<Tensor> tensors;
  std::vector<Instruction> instructions;
  std::vector<FloatTensor> floats;  // since version 3

  void visit(auto&& field) {
    field("inputs", inputs), field("outputs", outputs), field("tensors", tensors);
    field("instructions", instructions), field("floats", floats);
  }
};

// Arrays of float32 are numbered: the inputs, then the tensors, then the outputs. Targets count
// from the first tensor.
struct FloatNumber {
  enum class Kind : std::uint8_t { input, inner, output };
  Kind kind = Kind::input;
  std::size_t index = 0;
};

inline FloatNumber float_target(const Program& program, std::int64_t number) {
  const auto index = static_cast<std::size_t>(number), inner = program.floats.size();
  if (index < inner) return {FloatNumber::Kind::inner, index};
  return {FloatNumber::Kind::output, index - inner};
}

inline FloatNumber float_source(const Program& program, std::int64_t number) {
  const auto inputs = static_cast<std::int64_t>(program.inputs.size());
  if (number >= inputs) return float_target(program, number - inputs);
  return {FloatNumber::Kind::input, static_cast<std::size_t>(number)};
}

inline FloatTensor sizes_of(const Program& program, const FloatNumber& number) {
  if (number.kind == FloatNumber::Kind::inner) return program.floats[number.index];
  const Port& port = number.kind == FloatNumber::Kind::input ? program.inputs[number.index]
                                                             : program.outputs[number.index];
  return {port.height, port.width, port.channels};
}

// Encoded program, see `anybit/compiler/program/encoding.py`.
struct Encoded {
  std::span<const std::int64_t> words;
  Bytes bytes;
  Integers integers;
  Floats floats;
};

// Decodes a program. Throws Error if it is not a program or has an unknown version. `verify` checks
// its consistency.
Program read_program(const Encoded& encoded);

// Throws Error unless every run of the program stays within its tensors and tables, and matches
// `anybit/compiler/program/reference.py`.
void verify(const Program& program);

}  // namespace anybit::lowbit
