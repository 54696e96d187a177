// SPDX-License-Identifier: Apache-2.0
// An operator with its type erased, so that checking and planning are compiled once.
#pragma once

#include <array>
#include <span>

#include "ops/blocks.hpp"
#include "ops/types.hpp"

namespace anybit {

struct OperatorInfo {
  std::string_view name;
  int index;
  std::span<const Input> inputs;
  std::span<const int> differentiable;  // inputs that have a gradient, in their order
  int (*variant)(const void* attributes, bool float64, const Range* ranges);
  ElementType (*result_type)(const void* attributes, ElementType x);
  // Axis of 1-D parameters, -1 for a single element; null if NumPy's broadcasting applies.
  int (*parameter_axis)(const void* attributes, int rank);
  // Blocks that the operator reduces; null if it is elementwise. Throws Error for invalid inputs.
  BlockShape (*blocks)(const void* attributes, std::span<const Tensor> inputs);
};

// Positions of an operator's differentiable inputs.
template <class Op>
constexpr auto differentiable_inputs() {
  if constexpr (requires { Op::differentiable; }) {
    std::array<int, Op::differentiable.size()> places{};
    for (std::size_t i = 0; i < places.size(); ++i)
      while (Op::inputs[static_cast<std::size_t>(places[i])].name != Op::differentiable[i])
        ++places[i];
    return places;
  } else {
    return std::array<int, 0>{};
  }
}

template <class Op, class List>
const OperatorInfo& operator_info() {
  using Attributes = typename Op::Attributes;
  static constexpr auto differentiable = differentiable_inputs<Op>();
  static const OperatorInfo info{
      Op::name,
      [] {
        int index = 0, position = -1;
        List::for_each([&]<class Other>() {
          if (std::is_same_v<Op, Other>) position = index;
          ++index;
        });
        return position;
      }(),
      Op::inputs,
      differentiable,
      [](const void* attributes, bool float64, const Range* ranges) {
        const auto& typed = *static_cast<const Attributes*>(attributes);
        if constexpr (requires { Op::variant(typed); }) {
          return Op::variant(typed);
        } else {
          const std::span<const Range, Op::inputs.size()> all(ranges, Op::inputs.size());
          return float64 ? Op::template variant<double>(typed, all)
                         : Op::template variant<float>(typed, all);
        }
      },
      [](const void* attributes, ElementType x) {
        if constexpr (requires(const Attributes& typed) { Op::result_type(typed); })
          return Op::result_type(*static_cast<const Attributes*>(attributes));
        else return x;
      },
      [] {
        int (*axis)(const void*, int) = nullptr;
        if constexpr (requires(const Attributes& typed) { Op::parameter_axis(typed, 0); })
          axis = [](const void* attributes, int rank) {
            return Op::parameter_axis(*static_cast<const Attributes*>(attributes), rank);
          };
        return axis;
      }(),
      [] {
        BlockShape (*blocks)(const void*, std::span<const Tensor>) = nullptr;
        if constexpr (BlockReduction<Op>)
          blocks = [](const void* attributes, std::span<const Tensor> inputs) {
            return Op::blocks(*static_cast<const Attributes*>(attributes), inputs);
          };
        return blocks;
      }()};
  return info;
}

// Returns the type of the result. Throws Error for an x that the operator does not support.
ElementType result_type(const OperatorInfo& op, const void* attributes, ElementType x);

// Throws Error unless all inputs are present, of real numbers inside their domains, and broadcast
// to x. `ranges` receives the ranges of the integer inputs.
void check_inputs(const OperatorInfo& op, const void* attributes, std::span<const Tensor> inputs,
                  Range* ranges);

// Throws Error unless the gradient of the result is floating and has x's shape.
void check_gradient(const OperatorInfo& op, const Tensor& gradient, const Tensor& x);

}  // namespace anybit
