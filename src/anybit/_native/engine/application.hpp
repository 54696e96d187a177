// SPDX-License-Identifier: Apache-2.0
// An elementwise operator on arrays: checked and planned once, then run over any part of the
// elements.
#pragma once

#include "_native/threads/workers.hpp"
#include "elementwise_plan.hpp"

namespace anybit {

class Application : public ElementwisePlan {
 public:
  // Throws Error for invalid inputs. `inputs[0]` is x; `out` has x's shape and the result type, and
  // is x itself or does not overlap any input. Arrays and attributes must outlive the application.
  Application(const OperatorInfo& op, const void* attributes, std::span<const Tensor> inputs,
              const Tensor& out);

  // Computes all elements.
  void run(const Workers& workers) const;

 protected:
  // Computes the elements [first, last), counted in the plan's order, which is C order if `out` is
  // contiguous. Disjoint ranges may run concurrently.
  void run_range(std::int64_t first, std::int64_t last) const noexcept;

 private:
  void run_rows(const Position& at, std::int64_t rows, Scratch& scratch) const;
  void run_row(const Position& at, std::int64_t first, std::int64_t last, Scratch& scratch) const;
  void run_converted(Rows rows, Scratch& scratch) const;

  Kernel kernel_;
  bool direct_;  // the kernel reads x and writes out itself, without conversion
  const char* x_;
  char* out_;
};

}  // namespace anybit
