// SPDX-License-Identifier: Apache-2.0
// An operator as ONNX Runtime knows it: a name, the types of its inputs, and callbacks.
#pragma once

#include <string>
#include <vector>

#include "ort_kernel.hpp"

namespace anybit::ort {

// Older hosts read a null pointer when a node names an optional input "" and the operator infers
// shapes. Declared variadic, such an input is refused instead, if the host is not too old for that.
inline constexpr std::uint32_t takes_empty_names = 24;
inline constexpr std::uint32_t refuses_empty_variadic = 20;

// What the ONNX Runtime that loaded this library can do.
struct Host {
  const OrtApi& api;
  std::uint32_t minor;  // of its version 1.minor
};

// One operator name for one choice of input types; in every domain the same object.
struct Overload : OrtCustomOp {
  const Host* host = nullptr;
  std::string name;
  std::vector<Version> versions;  // all of them
  std::size_t required = 0;
  std::vector<OrtElementType> inputs;
  OrtElementType output = OrtElementType::undefined;  // undefined: attributes decide

  // Sets the callbacks; all members above must be set before.
  void connect();
};

}  // namespace anybit::ort
