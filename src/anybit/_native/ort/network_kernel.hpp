// SPDX-License-Identifier: Apache-2.0
// Program of an integer region as a node of a session. The first inputs are the encoded program,
// which must be constant; the others are the inputs of the program.
#pragma once

#include <atomic>
#include <memory>

#include "_native/lowbit/network.hpp"
#include "node.hpp"
#include "overload.hpp"

namespace anybit::ort {

inline constexpr const char* network_domain = "anybit";

class NetworkKernel {
 public:
  // Throws Error if the program is not constant or damaged, or does not fit the node.
  NetworkKernel(const OrtApi& api, const OrtKernelInfo* info);

  const OrtApi& api() const { return node_.api(); }

  // Throws Error for an input of another shape, or with NaN that the program rejects.
  void compute(OrtKernelContext* context) const;

 private:
  void read_program(const OrtKernelInfo* info);
  void check_counts(const OrtKernelInfo* info) const;
  void run(OrtKernelContext* context) const;
  int threads_for(OrtKernelContext* context, std::int64_t rows) const;

  Node node_;
  std::unique_ptr<const lowbit::Network> network_;
  mutable std::atomic<int> threads_{1}, counted_{0};
};

// The operator for ONNX Runtime.
struct NetworkOperator : OrtCustomOp {
  explicit NetworkOperator(const Host& host);
};

}  // namespace anybit::ort
