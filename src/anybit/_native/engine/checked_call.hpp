// SPDX-License-Identifier: Apache-2.0
// The checked inputs of a call, common to elementwise operators and to those that reduce blocks.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "kernels.hpp"
#include "operator_info.hpp"
#include "ops/types.hpp"

namespace anybit {

class CheckedCall {
 public:
  CheckedCall(const CheckedCall&) = delete;
  CheckedCall& operator=(const CheckedCall&) = delete;

  // The number of elements.
  std::int64_t size() const { return size_; }

 protected:
  static constexpr int max_parameters = max_inputs - 1;
  // Below this number of elements, a second thread costs more than it saves.
  static constexpr std::int64_t elements_per_thread = 128 * 1024;

  // Throws Error for invalid inputs. Arrays and attributes must outlive the object.
  CheckedCall(const OperatorInfo& op, const void* attributes, std::span<const Tensor> inputs);
  ~CheckedCall() = default;

  std::int64_t element_size() const { return float64_ ? 8 : 4; }

  // Whether kernels access elements of these steps (bytes) in x and out without conversion.
  bool is_direct(std::int64_t x_step, std::int64_t out_step) const;

  // Converts elements of a parameter to the type in which operators prepare it.
  void gather(int parameter, const void* from, std::int64_t step, std::int64_t count,
              void* gathered) const;

  const OperatorInfo& op_;
  const void* attributes_;
  const Level level_;
  const KernelSet& set_;
  int variant_ = 0;
  bool float64_;
  ElementType x_type_;
  ElementType out_type_;
  int parameter_count_;
  std::array<Tensor, max_parameters> parameters_;
  std::int64_t size_ = 1;  // 0 if x has no elements; classes that lay out loops set it

 private:
  std::array<double, max_parameters> absent_;  // stands in for omitted inputs
};

}  // namespace anybit
