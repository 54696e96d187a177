// SPDX-License-Identifier: Apache-2.0
// An operator as a node of a session, checked as early as its inputs are known.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "_native/engine/application.hpp"
#include "attributes.hpp"
#include "node.hpp"

namespace anybit::ort {

// One version of an operator: nodes of one name are told apart by how many inputs they have.
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
  // All versions of the operator.
  using Declaration = std::vector<Version>;

  // Throws Error if the node is wrong, as far as constant inputs and declared shapes tell.
  ElementwiseKernel(const OrtApi& api, const OrtKernelInfo* info, std::string_view onnx_name,
                    const Declaration& versions);

  const OrtApi& api() const { return node_.api(); }

  // Computes the node's output. Throws Error if the inputs are wrong.
  void compute(OrtKernelContext* context) const;

  // Says the output's shape, and its type if that is left to attributes. Throws what goes wrong.
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
