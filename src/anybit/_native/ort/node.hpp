// SPDX-License-Identifier: Apache-2.0
// A node of a session: its name, constants, and declared inputs.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>

#include "host.hpp"

namespace anybit::ort {

class Node {
 public:
  // Largest number of inputs.
  static constexpr std::size_t most_inputs = 6;
  using Descriptions = std::array<Description, most_inputs>;
  using Inputs = std::array<Tensor, most_inputs>;

  Node(const OrtApi& api, const OrtKernelInfo* info, std::string_view onnx_name);

  const OrtApi& api() const { return api_; }

  // For messages: node 'name' (IntQuant). An unnamed node has the name of its output.
  const std::string& label() const { return label_; }

  // Number of inputs, omitted ones included.
  std::size_t inputs() const { return inputs_; }

  // Gets the declared type of an input or of the output; returns false if there is none.
  bool describe_input(const OrtKernelInfo* info, std::size_t i, Description& description) const;
  bool describe_output(const OrtKernelInfo* info, Description& description) const;

  // Finds constant inputs. Throws Error, with its name, for an input that is not a tensor of real
  // numbers.
  void read_constants(const OrtKernelInfo* info, std::span<const Input> declared);

  // A constant input; null for others.
  const Tensor* constant(std::size_t i) const;

  // Gets all inputs of a run. Tensors borrow from the descriptions.
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
