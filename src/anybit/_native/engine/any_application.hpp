// SPDX-License-Identifier: Apache-2.0
// Any operator on arrays: checked and planned once, then run.
#pragma once

#include <variant>

#include "application.hpp"
#include "block_application.hpp"

namespace anybit {

class AnyApplication {
 public:
  // Throws Error for invalid inputs. `inputs[0]` is x; `out` has x's shape and the result type, and
  // is x itself or does not overlap any input. Arrays and attributes must outlive the object.
  AnyApplication(const OperatorInfo& op, const void* attributes, std::span<const Tensor> inputs,
                 const Tensor& out) {
    if (op.blocks == nullptr) plan_.emplace<Application>(op, attributes, inputs, out);
    else plan_.emplace<BlockApplication>(op, attributes, inputs, out);
  }

  // The number of elements.
  std::int64_t size() const {
    return std::visit(
        [](const auto& plan) -> std::int64_t {
          if constexpr (requires { plan.size(); }) return plan.size();
          else return 0;
        },
        plan_);
  }

  // Computes all elements.
  void run(const Workers& workers) const {
    std::visit(
        [&](const auto& plan) {
          if constexpr (requires { plan.run(workers); }) plan.run(workers);
        },
        plan_);
  }

 private:
  std::variant<std::monostate, Application, BlockApplication> plan_;
};

}  // namespace anybit
