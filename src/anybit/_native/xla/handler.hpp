// SPDX-License-Identifier: Apache-2.0
// The operators as handlers of XLA's custom calls, which is how JAX calls them.
#pragma once

#include <functional>
#include <string>

namespace anybit::xla {

using Visit = std::function<void(const std::string& name, void* handler)>;

// Visits the name and the address of each operator's handler. A handler takes x and its parameters,
// which broadcast to the result, and the operator's attributes by name. Those of differentiable
// operators are followed by NAME_backward.
void for_each_handler(const Visit& visit);

}  // namespace anybit::xla
