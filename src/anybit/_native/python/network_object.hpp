// SPDX-License-Identifier: Apache-2.0
// Programs of integer regions as Python objects.
#pragma once

#include "interpreter.hpp"

namespace anybit {

// Adds the class Network to the module, and the layout of programs, for the test that compares it
// with `anybit/compiler/program/program.py`.
void add_networks(const nb::module_& module);

}  // namespace anybit
