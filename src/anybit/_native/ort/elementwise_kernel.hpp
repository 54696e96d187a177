// SPDX-License-Identifier: Apache-2.0
// An operator as a node of a session. Inputs are checked as soon as they are known.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "_native/engine/any_application.hpp"
#include "attributes.hpp"
#include "node.hpp"

namespace anybit::ort {

// One version of an operator. The number of inputs distinguishes nodes of the same name.
struct Version {
  const OperatorInfo* info;
  std::shared_ptr<const void> (*attributes)(const AttributeSource& source);

  std::size_t most_inputs() const { return info->inputs.size(); }
  std::size_t least_inputs() const {
    std::size_t count = 0;
    while (count < info->inputs.size() && !info->inputs[count].optional) ++count;
    return count;
  }
};

static_assert(Node::most_inputs >= max_inputs);

class ElementwiseKernel {
 public:
  // All versions of an operator.
  using Declaration = std::vector<Version>;

  // Throws Error for a node whose constant inputs, attributes or declared shapes are invalid.
  ElementwiseKernel(const OrtApi& api, const OrtKernelInfo* info, std::string_view onnx_name,
                    const Declaration& versions);

  const OrtApi& api() const { return node_.api(); }

  // Computes the output of the node. Throws Error for invalid inputs.
  void compute(OrtKernelContext* context) const;

  // Infers the output's shape, and its type if attributes define it. May throw.
  static void infer(const OrtApi& api, OrtShapeInferContext* context, const Declaration& versions,
                    OrtElementType x, bool attributes_decide_output);

 private:
  void choose_version(const OrtKernelInfo* info, std::span<const Version> versions);
  void check_constants(const OrtKernelInfo* info) const;
  void check_output(const OrtKernelInfo* info, ElementType x) const;
  void run(OrtKernelContext* context) const;

  Node node_;
  const OperatorInfo* op_ = nullptr;
  std::shared_ptr<const void> attributes_;
};

}  // namespace anybit::ort
