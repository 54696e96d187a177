// SPDX-License-Identifier: Apache-2.0
// Gradients of an operator's inputs from the upstream gradient, in one pass over x.
#pragma once

#include <vector>

#include "_native/threads/workers.hpp"
#include "elementwise_plan.hpp"
#include "gradient_kernels.hpp"

namespace anybit {

class Backward : public ElementwisePlan {
 public:
  // The upstream gradient, and tensors to write the requested gradients to; others are null.
  struct Gradients {
    Tensor upstream;                           // of x's shape, of any floating type
    Tensor of_x;                               // of x's shape and type
    std::array<Tensor, max_inputs> of_inputs;  // contiguous, of the input's shape, floating
  };

  // Throws Error for invalid inputs, or a gradient of another shape than x. x's gradient may be
  // written to x or to the upstream gradient, and overlaps nothing else. Arrays and attributes must
  // outlive the object.
  Backward(const OperatorInfo& op, const void* attributes, std::span<const Tensor> inputs,
           const Gradients& gradients);

  // Computes all gradients. The sums of parameters do not depend on threads and ISA level, to the
  // bit: products are rounded to the compute type, summed in float64 in an order that depends only
  // on the arrays, and rounded to the parameter's type (to half types through float32).
  void run(const Workers& workers);

 private:
  // A parameter whose gradient is requested.
  struct Sum {
    int parameter;
    int product;  // position among the kernel's products
    Tensor gradient;
    std::int64_t count;   // elements
    std::int64_t offset;  // of its sums within those of a chunk
    std::vector<double> total;
  };
  struct Buffers {
    Scratch scratch;
    alignas(64) double gradient[block];
    alignas(64) double sums[max_products][block];
  };
  // Without a table, chunks share the sums of parameters with more elements than this.
  static constexpr std::int64_t most_own_sums = 4096;

  std::uint32_t plan_sums(const Gradients& gradients);
  void plan_chunks();
  void run_part(std::int64_t first, std::int64_t last, double* sums) noexcept;
  void run_rows(const Position& at, std::int64_t count, double* sums, Buffers& buffers);
  void run_row(const Position& at, std::int64_t first, std::int64_t last, double* sums,
               Buffers& buffers);
  void differentiate(const Position& at, std::int64_t first, GradientRows all, double* sums,
                     Buffers& buffers);
  void point_to_sums(const Position& at, std::int64_t first, GradientRows& all, double* sums,
                     Buffers& buffers);
  void add_elements(const Position& at, std::int64_t first, std::int64_t length, double* sums,
                    const Buffers& buffers);
  bool has_own_sums(const Sum& sum) const { return sum.count <= most_own_sums; }
  // Whether an element of the parameter belongs to one element of x, so that there is no sum.
  bool meets_one(const Sum& sum) const { return sum.count == size(); }
  double* elements_of(Sum& sum, double* sums) const {
    return has_own_sums(sum) ? sums + sum.offset : sum.total.data();
  }
  void deliver(const std::vector<double>& sums);

  GradientKernel kernel_{};
  const GradientSet& gradients_;
  const char* x_ = nullptr;
  const char* upstream_ = nullptr;
  char* out_ = nullptr;  // null if x's gradient is not requested
  ElementType upstream_type_{};
  // Operands that the kernel accesses without conversion, and whether it does so for all.
  bool direct_x_ = false, direct_upstream_ = false, direct_out_ = false, direct_ = false;
  std::int64_t longest_ = 0;  // longest row of a kernel call; scratch arrays hold a block
  int scope_ = 0;             // which loop of the kernel, see gradient_kernels.hpp
  int products_ = 0;          // number of products that are summed, requested or not
  std::vector<Sum> sums_;
  std::int64_t chunk_sums_ = 0;  // float64 sums per chunk
  std::int64_t chunk_ = 0;       // elements
};

}  // namespace anybit
