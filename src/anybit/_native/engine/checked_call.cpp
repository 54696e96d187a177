// SPDX-License-Identifier: Apache-2.0
#include "checked_call.hpp"

#include <algorithm>

#include "_native/isa/ieee_arithmetic.hpp"

namespace anybit {

CheckedCall::CheckedCall(const OperatorInfo& op, const void* attributes,
                         std::span<const Tensor> inputs)
    : op_(op),
      attributes_(attributes),
      level_(level_for(inputs[0])),
      set_(kernels_of<KernelSet>(level_)) {
  const Tensor& x = inputs[0];
  x_type_ = x.type;
  out_type_ = result_type(op, attributes, x.type);
  if (x.rank > max_rank)
    throw Error(Error::Kind::value, "arrays of more than " + std::to_string(max_rank) +
                                        " dimensions are not supported, got " +
                                        std::to_string(x.rank));
  const IeeeArithmetic ieee;
  std::array<Range, max_inputs> ranges;
  check_inputs(op, attributes, inputs, ranges.data());

  float64_ = x.type == ElementType::float64;
  if (std::any_of(x.shape, x.shape + x.rank, [](auto size) { return size == 0; })) {
    size_ = 0;  // the other sizes are arbitrary
    return;
  }
  variant_ = op.variant(attributes, float64_, ranges.data());
  parameter_count_ = static_cast<int>(op.inputs.size()) - 1;
  for (int i = 0; i < parameter_count_; ++i) {
    const bool is_given = static_cast<std::size_t>(i) + 1 < inputs.size() && inputs[i + 1].given;
    absent_[i] = op.inputs[i + 1].absent;
    parameters_[i] = is_given ? inputs[i + 1] : Tensor{&absent_[i], ElementType::float64};
  }
}

bool CheckedCall::is_direct(std::int64_t x_step, std::int64_t out_step) const {
  const ElementType computed = float64_ ? ElementType::float64 : ElementType::float32;
  return x_type_ == computed && (out_type_ == computed || !is_floating(out_type_)) &&
         x_step == size_of(x_type_) && out_step == size_of(out_type_);
}

void CheckedCall::gather(int parameter, const void* from, std::int64_t step, std::int64_t count,
                         void* gathered) const {
  const bool wide = float64_ || op_.inputs[parameter + 1].domain.integer;
  set_.load[static_cast<int>(parameters_[parameter].type)][wide ? 1 : 0](from, step, count,
                                                                         gathered);
}

}  // namespace anybit
