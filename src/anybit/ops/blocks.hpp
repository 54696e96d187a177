// SPDX-License-Identifier: Apache-2.0
// Blocks along an axis of a tensor: what operators that reduce them declare.
#pragma once

#include <concepts>
#include <span>

#include "types.hpp"

namespace anybit {

struct BlockShape {
  int axis;           // counted from the front
  std::int64_t size;  // elements; the last block may have fewer
};

// An operator that is elementwise except for the largest magnitude of a block, which `prepare`
// takes before the parameters. It is infinite or NaN if an element is. Parameters are the same for
// all elements of a block.
template <class Op>
concept BlockReduction =
    requires(const typename Op::Attributes& attributes, std::span<const Tensor> inputs) {
      { Op::blocks(attributes, inputs) } -> std::same_as<BlockShape>;
    };

// Throws Error for an axis that a tensor of that rank lacks.
inline int axis_of_blocks(std::int64_t axis, int rank) {
  if (axis < -rank || axis >= rank)
    throw Error(Error::Kind::value, "axis must be in [" + std::to_string(-rank) + ", " +
                                        std::to_string(rank - 1) + "] for x of rank " +
                                        std::to_string(rank) + ", got " + std::to_string(axis));
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

}  // namespace anybit
