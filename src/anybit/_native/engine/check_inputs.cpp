// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "kernels.hpp"
#include "operator_info.hpp"

namespace anybit {

namespace {

std::string text_of(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, value).ptr;
  return std::string(digits, end);
}

std::string text_of(const Tensor& tensor) {
  std::string text = "(";
  for (int i = 0; i < tensor.rank; ++i)
    text.append(i == 0 ? "" : ", ").append(std::to_string(tensor.shape[i]));
  return text + (tensor.rank == 1 ? ",)" : ")");
}

[[noreturn]] void fail(Error::Kind kind, const Input& input, const std::string& rest) {
  throw Error(kind, std::string(input.name) + " " + rest);
}

// Visits all elements of a tensor as double, one contiguous run at a time.
template <class Visit>
void for_each_stretch(const Tensor& tensor, Visit visit) {
  constexpr std::int64_t block = 256;
  double values[block];
  const Load load = kernels_of<KernelSet>(level_for(tensor)).load[static_cast<int>(tensor.type)][1];
  const int inner = tensor.rank - 1;
  const std::int64_t length = tensor.rank == 0 ? 1 : tensor.shape[inner];
  std::int64_t rows = 1;
  for (int i = 0; i < inner; ++i) rows *= tensor.shape[i];
  const std::int64_t step =
      tensor.rank > 0 && tensor.strides != nullptr ? tensor.strides[inner] : size_of(tensor.type);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::int64_t offset = 0, rest = row;
    for (int i = inner - 1; i >= 0; rest /= tensor.shape[i], --i)
      if (tensor.strides != nullptr) offset += rest % tensor.shape[i] * tensor.strides[i];
    if (tensor.strides == nullptr) offset = row * length * step;
    for (std::int64_t first = 0; first < length; first += block) {
      const std::int64_t count = std::min(block, length - first);
      load(static_cast<const char*>(tensor.data) + offset + first * step, step, count, values);
      visit(values, count);
    }
  }
}

bool is_empty(const Tensor& tensor) {
  return std::any_of(tensor.shape, tensor.shape + tensor.rank, [](auto size) { return size == 0; });
}

Range check_values(const Input& input, const Tensor& tensor) {
  const Domain& domain = input.domain;
  Range range{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  if (is_empty(tensor)) return {};
  for_each_stretch(tensor, [&](const double* values, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      const double value = values[i];
      const bool whole = std::isfinite(value) && value == std::floor(value);
      if (!(value >= domain.minimum && value <= domain.maximum) || (domain.integer && !whole))
        fail(Error::Kind::value, input,
             "must be " + std::string(domain.description) + ", got " + text_of(value));
      range = {std::min(range.lowest, value), std::max(range.highest, value)};
    }
  });
  return range;
}

void check_broadcast(const Input& input, const Tensor& tensor, const Tensor& x,
                     std::string_view x_name) {
  bool fits = tensor.rank <= x.rank;
  for (int i = 1; fits && i <= tensor.rank; ++i) {
    const std::int64_t size = tensor.shape[tensor.rank - i];
    fits = size == 1 || size == x.shape[x.rank - i];
  }
  if (!fits)
    fail(Error::Kind::value, input,
         "of shape " + text_of(tensor) + " does not broadcast to " + std::string(x_name) +
             " of shape " + text_of(x));
}

void check_axis(const Input& input, const Tensor& tensor, const Tensor& x, int axis) {
  const std::int64_t expected = axis < 0 ? 1 : x.shape[axis];
  const std::int64_t count = tensor.rank == 0 ? 1 : tensor.shape[0];
  if (tensor.rank > 1 || count != expected)
    fail(Error::Kind::value, input,
         "must have shape (" + std::to_string(expected) + ",) for " +
             (axis < 0 ? "per_tensor" : "per_channel") + ", got " + text_of(tensor));
}

// All elements of a block have the same parameter.
void check_blocks(const Input& input, const Tensor& tensor, int x_rank, int axis) {
  const int own = axis - x_rank + tensor.rank;
  if (own >= 0 && tensor.shape[own] != 1)
    fail(Error::Kind::value, input,
         "of shape " + text_of(tensor) + " must have size 1 along axis " + std::to_string(axis) +
             ", the axis of the blocks");
}

}  // namespace

ElementType result_type(const OperatorInfo& op, const void* attributes, ElementType x) {
  const Input& input = op.inputs[0];
  if (!input.domain.accepts(x))
    fail(Error::Kind::type, input,
         "must be " + std::string(input.domain.description) + ", got " + std::string(name_of(x)));
  return op.result_type(attributes, x);
}

void check_inputs(const OperatorInfo& op, const void* attributes, std::span<const Tensor> inputs,
                  Range* ranges) {
  const Tensor& x = inputs[0];
  const int axis = op.parameter_axis == nullptr ? 0 : op.parameter_axis(attributes, x.rank);
  const int block_axis = op.blocks == nullptr ? 0 : op.blocks(attributes, inputs).axis;
  for (std::size_t i = 1; i < op.inputs.size(); ++i) {
    const Input& input = op.inputs[i];
    ranges[i] = {};
    if (i >= inputs.size() || !inputs[i].given) {
      if (!input.optional) fail(Error::Kind::type, input, "is missing");
      continue;
    }
    const Tensor& tensor = inputs[i];
    if (!tensor.literal && !input.domain.accepts(tensor.type))
      fail(Error::Kind::type, input,
           "must be " + std::string(input.domain.description) + ", got dtype " +
               std::string(name_of(tensor.type)));
    if (op.parameter_axis == nullptr) check_broadcast(input, tensor, x, op.inputs[0].name);
    else check_axis(input, tensor, x, axis);
    if (op.blocks != nullptr) check_blocks(input, tensor, x.rank, block_axis);
    if (!input.domain.unlimited()) ranges[i] = check_values(input, tensor);
  }
}

void check_gradient(const OperatorInfo& op, const Tensor& gradient, const Tensor& x) {
  if (!is_floating(gradient.type))
    throw Error(Error::Kind::type, "gradient must be " + std::string(floating.description) +
                                       ", got " + std::string(name_of(gradient.type)));
  if (gradient.rank != x.rank || !std::equal(x.shape, x.shape + x.rank, gradient.shape))
    throw Error(Error::Kind::value, "gradient must have the shape of " +
                                        std::string(op.inputs[0].name) + ", " + text_of(x) +
                                        ", got " + text_of(gradient));
}

}  // namespace anybit
