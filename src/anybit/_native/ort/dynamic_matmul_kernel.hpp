// SPDX-License-Identifier: Apache-2.0
// MatMul of two dynamically quantized tensors, as an ONNX Runtime kernel.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "_native/lowbit/dynamic_matmul.hpp"
#include "node.hpp"
#include "overload.hpp"

namespace anybit::ort {

class DynamicMatMulKernel {
 public:
  // Throws Error for attributes that no quantizer has.
  DynamicMatMulKernel(const OrtApi& api, const OrtKernelInfo* info);

  const OrtApi& api() const { return node_.api(); }

  // Throws Error for inputs whose sizes do not fit.
  void compute(OrtKernelContext* context) const;

 private:
  void run(OrtKernelContext* context) const;

  Node node_;
  bool transposed_ = false;
  std::array<std::string, 3> axes_;  // of the inputs and the output, see View
  std::unique_ptr<const lowbit::DynamicMatMul> product_;
};

// The operator for ONNX Runtime.
struct DynamicMatMulOperator : OrtCustomOp {
  explicit DynamicMatMulOperator(const Host& host);
};

}  // namespace anybit::ort
