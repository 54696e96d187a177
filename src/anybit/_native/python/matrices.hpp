// SPDX-License-Identifier: Apache-2.0
// Products of matrices, and rounding of weights in turn by any operator, as Python functions.
#pragma once

#include <array>
#include <string>

#include "_native/engine/application.hpp"
#include "_native/engine/matrices.hpp"
#include "arguments.hpp"
#include "network_arrays.hpp"
#include "ops/operators.hpp"

namespace anybit {

// Returns an array of float64 of a rank.
inline const Tensor& doubles(const Operand& array, int rank, const char* name) {
  const Tensor& tensor = array.tensor();
  if (!tensor.given || tensor.type != ElementType::float64 || tensor.rank != rank)
    throw Error(Error::Kind::value, std::string(name) + " must be float64 with " +
                                        std::to_string(rank) + " dimensions");
  return tensor;
}

// Returns the matrix along the last two dimensions.
inline MatrixView matrix_of(const Tensor& tensor, std::int64_t group = 0) {
  constexpr std::int64_t size = sizeof(double);
  const int last = tensor.rank - 1;
  auto* const data = static_cast<double*>(const_cast<void*>(tensor.data));
  return {data + (tensor.rank == 3 ? group * tensor.strides[0] / size : 0), tensor.shape[last - 1],
          tensor.shape[last], tensor.strides[last - 1] / size, tensor.strides[last] / size};
}

// add_product(sums, a, b, subtract). The memory of sums and factors may be interleaved.
inline nb::object add_product_of(const Call& call) {
  if (call.positional != 4 || call.keywords() != 0)
    throw Error(Error::Kind::type, "add_product() takes sums, a, b and whether to subtract");
  std::array<Operand, 3> operands;
  for (std::size_t i = 0; i < 3; ++i)
    operands[i].borrow(nb::borrow(call.values[i]), i == 0 ? "sums" : "a factor", i == 0);
  const MatrixView sums = matrix_of(doubles(operands[0], 2, "sums"));
  const MatrixView a = matrix_of(doubles(operands[1], 2, "a"));
  const MatrixView b = matrix_of(doubles(operands[2], 2, "b"));
  const bool subtract = is_true(call.values[3]);
  if (a.rows != sums.rows || b.columns != sums.columns || a.columns != b.rows)
    throw Error(Error::Kind::value, "the shapes of sums and factors do not match");
  if (sums.rows == 0 || sums.columns == 0) return nb::none();
  if (sums.column_step != 1) throw Error(Error::Kind::value, "rows of sums must be contiguous");
  {
    const WithoutGil unlocked(sums.rows * sums.columns * b.rows);
    add_product(sums, a, b, subtract);
  }
  return nb::none();
}

// An application whose elements are computed row by row.
class RowApplication : public Application {
 public:
  using Application::Application;
  using Application::run_range;
};

inline bool is_contiguous(const Tensor& tensor) {
  std::int64_t step = size_of(tensor.type);
  for (int i = tensor.rank - 1; i >= 0; step *= tensor.shape[i], --i)
    if (tensor.shape[i] != 1 && tensor.strides[i] != step) return false;
  return true;
}

// Rounds weights in turn; `inputs[0]` receives them.
inline void round_in_turn(const OperatorInfo& op, const void* attributes,
                          std::span<const Tensor> inputs, const Tensor& weights,
                          const Tensor& triangles) {
  const Tensor& x = inputs[0];
  const std::int64_t *sizes = weights.shape, *turns = triangles.shape;
  if (x.type != ElementType::float32 || x.rank != 3 || !std::equal(sizes, sizes + 3, x.shape) ||
      turns[0] != sizes[1] || turns[1] != sizes[0] || turns[2] != sizes[0] ||
      !is_contiguous(weights) || !is_contiguous(x))
    throw Error(Error::Kind::value,
                "weights and x must be contiguous [terms, groups, columns] of float64 and float32, "
                "and triangles [groups, terms, terms]");
  const RowApplication application(op, attributes, inputs, x);
  if (application.size() == 0) return;
  const std::int64_t row = sizes[1] * sizes[2];
  TermRounding rounding{
      sizes[0],
      sizes[1],
      sizes[2],
      matrix_of(weights).data,
      {},
      static_cast<float*>(const_cast<void*>(x.data)),
      [&](std::int64_t term) { application.run_range(term * row, (term + 1) * row); }};
  for (std::int64_t group = 0; group < sizes[1]; ++group)
    rounding.triangles.push_back(matrix_of(triangles, group));
  const WithoutGil unlocked(application.size() * sizes[0]);
  round_terms(rounding);
}

// OPERATOR_in_turn(weights, triangles, x, further arguments of the operator): see round_terms.
template <class Op>
nb::object round_in_turn(const Call& call) {
  if (call.positional < 3) fail(Op::name, "in turn takes at least 3 arrays");
  const Arguments<Op> arguments({call.values + 2, call.positional - 2, call.names, call.named});
  const OperatorInfo& op = operator_info<Op, Operators>();
  std::array<Operand, 2> matrices;
  matrices[0].borrow(nb::borrow(call.values[0]), "weights", true);
  matrices[1].borrow(nb::borrow(call.values[1]), "triangles", false);
  std::array<Operand, Op::inputs.size()> operands;
  const ElementType type = read_inputs(arguments, op, operands);
  Operand out;
  take_out(out, operands[0].object(), operands[0], type, nullptr);  // it must be writable
  std::array<Tensor, Op::inputs.size()> tensors;
  for (std::size_t i = 0; i < operands.size(); ++i) tensors[i] = operands[i].tensor();
  round_in_turn(op, &arguments.attributes, tensors, doubles(matrices[0], 3, "weights"),
                doubles(matrices[1], 3, "triangles"));
  return nb::none();
}

}  // namespace anybit
