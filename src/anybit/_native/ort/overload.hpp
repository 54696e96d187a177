// SPDX-License-Identifier: Apache-2.0
// An operator as ONNX Runtime knows it: a name, the types of its inputs, and callbacks.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "host.hpp"

namespace anybit::ort {

// Older hosts read a null pointer when a node names an optional input "" and the operator infers
// shapes. Declared variadic, such an input is refused instead, if the host is not too old for that.
inline constexpr std::uint32_t takes_empty_names = 24;
inline constexpr std::uint32_t refuses_empty_variadic = 20;

// The newest OrtCustomOp that abi.hpp describes.
inline constexpr std::uint32_t newest_custom_op = 18;

// What the ONNX Runtime that loaded this library can do.
struct Host {
  const OrtApi& api;
  std::uint32_t minor;  // of its version 1.minor
};

// One operator name for one choice of input types; in every domain the same object.
struct Signature : OrtCustomOp {
  const Host* host = nullptr;
  std::string name;
  std::size_t required = 0;
  std::vector<OrtElementType> inputs;
  OrtElementType output = OrtElementType::undefined;  // undefined: attributes decide

  bool attributes_decide_output() const { return output == OrtElementType::undefined; }
  bool infers_shapes() const {
    return required == inputs.size() || host->minor >= refuses_empty_variadic;
  }

  // Sets the callbacks that no kernel takes part in; all members above must be set before.
  void connect();
};

// A signature with what computes it. A Kernel is made from (api, info, name, declaration), has
// `api()`, `compute(context)` and a static `infer(api, context, declaration, x's type, whether
// attributes decide the output's type)`, all of which may throw.
template <class Kernel>
struct Overload : Signature {
  typename Kernel::Declaration declaration;

  // Sets all callbacks; all members must be set before.
  void connect() {
    Signature::connect();
    CreateKernelV2 = make;
    KernelComputeV2 = compute;
    KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
    if (infers_shapes()) InferOutputShapeFn = infer;
  }

 private:
  static const Overload& of(const OrtCustomOp* op) { return *static_cast<const Overload*>(op); }

  static OrtStatus* make(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                         void** kernel) noexcept {
    return guarded(*api,
                   [&] { *kernel = new Kernel(*api, info, of(op).name, of(op).declaration); });
  }

  static OrtStatus* compute(void* kernel, OrtKernelContext* context) noexcept {
    const auto& self = *static_cast<const Kernel*>(kernel);
    return guarded(self.api(), [&] { self.compute(context); });
  }

  // Faults surface when the kernel is made: the host drops statuses here.
  static OrtStatus* infer(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
    const Overload& self = of(op);
    try {
      Kernel::infer(self.host->api, context, self.declaration, self.inputs[0],
                    self.attributes_decide_output());
    } catch (...) {
      return nullptr;
    }
    return nullptr;
  }
};

}  // namespace anybit::ort
