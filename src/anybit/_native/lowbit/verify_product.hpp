// SPDX-License-Identifier: Apache-2.0
// Whether a window fits its tensors, and the sums of a product its tail.
#pragma once

#include "damage.hpp"
#include "program.hpp"

namespace anybit::lowbit {

// Throws unless the windows over `from` are as many as the elements of the target.
template <class Target>
void verify_window(const Window& window, const Tensor& from, const Target& to);

// Throws unless the product stays within its operands, its sums within int32, and what its tail
// gives within [0, levels) of the target; an `Arithmetic` has no levels.
template <class Target>
void verify_product(const Product& at, const Tensor& from, const Target& to, std::int64_t levels);

}  // namespace anybit::lowbit
