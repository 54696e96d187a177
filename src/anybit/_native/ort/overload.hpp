// SPDX-License-Identifier: Apache-2.0
// An operator for ONNX Runtime: a name, the types of its inputs, and callbacks.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "host.hpp"

namespace anybit::ort {

// Older hosts read a null pointer if a node names an optional input "" and the operator infers
// shapes. Declared as variadic, such an input is rejected instead, if the host supports this.
inline constexpr std::uint32_t takes_empty_names = 24;
inline constexpr std::uint32_t refuses_empty_variadic = 20;

// Newest version of OrtCustomOp in abi.hpp.
inline constexpr std::uint32_t newest_custom_op = 18;

// Capabilities of the ONNX Runtime that loaded this library.
struct Host {
  const OrtApi& api;
  std::uint32_t minor;  // minor version of 1.minor
};

// Sets the version and the callbacks that do not depend on the operator.
void connect_host(OrtCustomOp& op, std::uint32_t minor);

// Sets the callbacks of a kernel, which has `api()` and `compute(context)`. That which makes it is
// set for a Kernel that is constructed from (api, info).
template <class Kernel>
void connect_kernel(OrtCustomOp& op) {
  if constexpr (std::is_constructible_v<Kernel, const OrtApi&, const OrtKernelInfo*>)
    op.CreateKernelV2 = [](const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info,
                           void** kernel) {
      return guarded(*api, [&] { *kernel = new Kernel(*api, info); });
    };
  op.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
    const auto& self = *static_cast<const Kernel*>(kernel);
    return guarded(self.api(), [&] { self.compute(context); });
  };
  op.KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
}

// An operator name for one combination of input types; all domains share the object.
struct Signature : OrtCustomOp {
  const Host* host = nullptr;
  std::string name;
  std::size_t required = 0;
  std::vector<OrtElementType> inputs;
  OrtElementType output = OrtElementType::undefined;  // undefined: attributes define it

  bool attributes_decide_output() const { return output == OrtElementType::undefined; }
  bool infers_shapes() const {
    return required == inputs.size() || host->minor >= refuses_empty_variadic;
  }

  // Sets the callbacks that do not involve a kernel. All members above must be set before.
  void connect();
};

// A signature with its kernel. A Kernel is constructed from (api, info, name, declaration), and has
// `api()`, `compute(context)` and a static `infer(api, context, declaration, x's type, whether
// attributes define the output's type)`. All may throw.
template <class Kernel>
struct Overload : Signature {
  typename Kernel::Declaration declaration;

  // Sets all callbacks; all members must be set before.
  void connect() {
    Signature::connect();
    CreateKernelV2 = make;
    connect_kernel<Kernel>(*this);
    if (infers_shapes()) InferOutputShapeFn = infer;
  }

 private:
  static const Overload& of(const OrtCustomOp* op) { return *static_cast<const Overload*>(op); }

  static OrtStatus* make(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                         void** kernel) noexcept {
    return guarded(*api,
                   [&] { *kernel = new Kernel(*api, info, of(op).name, of(op).declaration); });
  }

  // Errors are reported when the kernel is created: the host ignores statuses here.
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
