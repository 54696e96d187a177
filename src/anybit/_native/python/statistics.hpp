// SPDX-License-Identifier: Apache-2.0
// Statistics of many arrays as Python functions, for quantization.
#pragma once

#include "interpreter.hpp"

namespace anybit {

// Adds the functions for histograms and sums of squares to the module.
void add_statistics(const nb::module_& module);

}  // namespace anybit
