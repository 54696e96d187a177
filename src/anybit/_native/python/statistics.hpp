// SPDX-License-Identifier: Apache-2.0
// What quantizing asks of many arrays, as Python functions.
#pragma once

#include "interpreter.hpp"

namespace anybit {

// Adds to the module what counts values and adds up squares.
void add_statistics(const nb::module_& module);

}  // namespace anybit
