// SPDX-License-Identifier: Apache-2.0
// Loop layout; elementwise_table.cpp has the table of prepared parameters.
#include "elementwise_plan.hpp"

#include <algorithm>

#include "_native/isa/ieee_arithmetic.hpp"
#include "loop_order.hpp"

namespace anybit {

void ElementwisePlan::Position::advance(const Position& steps, std::int64_t times) {
  x += steps.x * times;
  out += steps.out * times;
  gradient += steps.gradient * times;
  table += steps.table * times;
  entry += steps.entry * times;
  for (std::size_t i = 0; i < max_parameters; ++i) {
    parameters[i] += steps.parameters[i] * times;
    targets[i] += steps.targets[i] * times;
  }
}

bool ElementwisePlan::Loop::varies() const {
  const auto moves = [](std::int64_t step) { return step != 0; };
  return std::any_of(parameters.begin(), parameters.end(), moves) ||
         std::any_of(targets.begin(), targets.end(), moves);
}

// Whether all operands continue past the inner loop with the same strides, so that loops can merge.
bool ElementwisePlan::Loop::can_merge(const Loop& inner) const {
  bool all = x == inner.x * inner.size && out == inner.out * inner.size &&
             gradient == inner.gradient * inner.size;
  for (std::size_t i = 0; i < max_parameters; ++i)
    all = all && parameters[i] == inner.parameters[i] * inner.size &&
          targets[i] == inner.targets[i] * inner.size;
  return all;
}

bool ElementwisePlan::next(Cursor& cursor, int count, Through through, std::int64_t steps) const {
  for (int i = count - 1; i >= 0; --i) {
    if (through == Through::varying_loops && !loop_[i].varies()) continue;
    cursor.at.advance(loop_[i], steps);
    cursor.index[i] += steps;
    if (cursor.index[i] < loop_[i].size) return true;
    cursor.at.advance(loop_[i], -loop_[i].size);
    cursor.index[i] = 0;
    steps = 1;
  }
  return false;
}

void ElementwisePlan::lay_out(const Arrays& arrays, const Preparation& preparation,
                              std::uint32_t summed) {
  if (size_ == 0) return;
  const IeeeArithmetic ieee;
  preparation_ = preparation;
  lay_out_loops(arrays, summed);
  merge_loops();
  plan_table();
}

void ElementwisePlan::lay_out_loops(const Arrays& arrays, std::uint32_t summed) {
  const Tensor& x = arrays.x;
  const Tensor& gradient = arrays.gradient == nullptr ? x : *arrays.gradient;
  const int axis = op_.parameter_axis == nullptr ? 0 : op_.parameter_axis(attributes_, x.rank);
  // Strides of a contiguous array, built from the last dimension on.
  Position next{size_of(x.type), size_of(out_type_), size_of(gradient.type), 0, 0, {}, {}};
  for (int p = 0; p < parameter_count_; ++p) {
    next.parameters[p] = size_of(parameters_[p].type);
    next.targets[p] = static_cast<std::int64_t>(summed >> p & 1u);
  }
  const auto step = [](const Tensor& tensor, int dim, std::int64_t contiguous) {
    return tensor.strides ? tensor.strides[dim] : contiguous;
  };
  for (int dim = x.rank - 1; dim >= 0; --dim) {
    const std::int64_t size = x.shape[dim];
    Loop loop{{step(x, dim, next.x),
               step(arrays.out, dim, next.out),
               step(gradient, dim, next.gradient),
               0,
               0,
               {},
               {}},
              size};
    for (int p = 0; p < parameter_count_; ++p) {
      const Tensor& parameter = parameters_[p];
      const int own =
          op_.parameter_axis != nullptr ? (dim == axis ? 0 : -1) : dim - x.rank + parameter.rank;
      if (own < 0 || own >= parameter.rank || parameter.shape[own] == 1) continue;
      loop.parameters[p] = step(parameter, own, next.parameters[p]);
      loop.targets[p] = next.targets[p];
      next.parameters[p] *= size;
      next.targets[p] *= size;
    }
    next.x *= size;
    next.out *= size;
    next.gradient *= size;
    size_ *= size;
    if (size != 1) loop_[loops_++] = loop;
  }
  std::reverse(loop_.begin(), loop_.begin() + loops_);
  if (loops_ == 0) loop_[loops_++] = Loop{{next.x, next.out, next.gradient, 0, 0, {}, {}}, 1};
}

void ElementwisePlan::merge_loops() {
  loops_ = sort_and_merge(std::span(loop_.data(), static_cast<std::size_t>(loops_)));
  row_loop_ = loops_ - 1;
  row_ = inner().size;
}

}  // namespace anybit
