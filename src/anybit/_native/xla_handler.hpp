// SPDX-License-Identifier: Apache-2.0
// The operators as handlers of XLA's custom calls, which is how JAX calls them.
#pragma once

#include <functional>
#include <string_view>

namespace anybit::xla {

// Visits the name and the address of each operator's handler. A handler takes x and its parameters,
// which broadcast to the result, and the operator's attributes by name.
void for_each_handler(const std::function<void(std::string_view name, void* handler)>& visit);

}  // namespace anybit::xla
