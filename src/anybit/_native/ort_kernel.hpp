// SPDX-License-Identifier: Apache-2.0
// One node of a session: what it computes, checked as early as its inputs are known.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>

#include "application.hpp"
#include "ort_attributes.hpp"

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

class Kernel {
 public:
  // Throws Error if the node is wrong, as far as constant inputs and declared shapes tell.
  Kernel(const OrtApi& api, const OrtKernelInfo* info, std::string_view onnx_name,
         std::span<const Version> versions);

  // Computes the node's output. Throws Error if the inputs are wrong.
  void compute(OrtKernelContext* context) const;

  const OrtApi& api() const { return api_; }

 private:
  // An input that is the same in every run.
  struct Constant {
    Description description;
    Tensor tensor;
  };

  using Descriptions = std::array<Description, max_inputs>;
  using Inputs = std::array<Tensor, max_inputs>;

  void choose_version(const OrtKernelInfo* info, std::span<const Version> versions);
  void read_constants(const OrtKernelInfo* info);
  void check_constants(const OrtKernelInfo* info) const;
  void check_output(const OrtKernelInfo* info, ElementType x) const;
  void read_inputs(OrtKernelContext* context, Descriptions& descriptions, Inputs& inputs) const;
  void run(OrtKernelContext* context) const;
  std::string_view name_of_input(std::size_t i) const { return op_->inputs[i].name; }

  const OrtApi& api_;
  const std::string node_;  // for messages
  const OperatorInfo* op_ = nullptr;
  std::shared_ptr<const void> attributes_;
  std::size_t inputs_ = 0;
  std::array<std::unique_ptr<Constant>, max_inputs> constants_;
};

}  // namespace anybit::ort
