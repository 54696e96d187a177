// SPDX-License-Identifier: Apache-2.0
// Operators as handlers of XLA's custom calls, for JAX.
#pragma once

#include <functional>
#include <string>

namespace anybit::xla {

using Visit = std::function<void(const std::string& name, void* handler)>;

// Visits names and addresses of the operators' handlers. A handler takes x and its parameters,
// which broadcast to the result, and the operator's attributes by name. NAME_backward follows the
// handler of a differentiable operator.
void for_each_handler(const Visit& visit);

}  // namespace anybit::xla
