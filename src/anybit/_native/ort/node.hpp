// SPDX-License-Identifier: Apache-2.0
// One node of a session, whatever it computes: its name, its constants, what is known of its
// inputs.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>

#include "host.hpp"

namespace anybit::ort {

class Node {
 public:
  // No node has more inputs.
  static constexpr std::size_t most_inputs = 6;
  using Descriptions = std::array<Description, most_inputs>;
  using Inputs = std::array<Tensor, most_inputs>;

  Node(const OrtApi& api, const OrtKernelInfo* info, std::string_view onnx_name);

  const OrtApi& api() const { return api_; }

  // node 'name' (IntQuant): for messages. A node without a name is called like its output.
  const std::string& label() const { return label_; }

  // The number of inputs, those between that are left out included.
  std::size_t inputs() const { return inputs_; }

  // What the graph says of an input or of the output; false if it says nothing.
  bool describe_input(const OrtKernelInfo* info, std::size_t i, Description& description) const;
  bool describe_output(const OrtKernelInfo* info, Description& description) const;

  // Looks for the inputs that are the same in every run. Throws Error, with its name, for one that
  // is not a tensor of real numbers.
  void read_constants(const OrtKernelInfo* info, std::span<const Input> declared);

  // An input that is the same in every run; null for another one.
  const Tensor* constant(std::size_t i) const;

  // All inputs of a run. Tensors borrow from the descriptions.
  void read_inputs(OrtKernelContext* context, std::span<const Input> declared,
                   Descriptions& descriptions, Inputs& inputs) const;

 private:
  struct Constant {
    Description description;
    Tensor tensor;
  };

  const OrtApi& api_;
  const std::string label_;
  std::size_t inputs_ = 0;
  std::array<std::unique_ptr<Constant>, most_inputs> constants_;
};

}  // namespace anybit::ort
