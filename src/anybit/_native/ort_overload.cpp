// SPDX-License-Identifier: Apache-2.0
#include "ort_overload.hpp"

#include <algorithm>
#include <atomic>

namespace anybit::ort {

namespace {

// The newest OrtCustomOp that ort_abi.hpp describes.
constexpr std::uint32_t newest_custom_op = 18;

const Overload& overload(const OrtCustomOp* op) { return *static_cast<const Overload*>(op); }

// The host takes a size without a name at its word, as -1: unknown sizes get names of their own.
void name_unknown_sizes(const OrtApi& api, OrtTensorTypeAndShapeInfo* info) {
  static std::atomic<std::uint64_t> count{0};
  Description description;
  description.read(api, info);
  std::vector<const char*> pointers(description.rank);
  check(api, api.GetSymbolicDimensions(info, pointers.data(), pointers.size()));
  std::vector<std::string> names;
  for (std::size_t i = 0; i < description.rank; ++i) {
    names.emplace_back(pointers[i] == nullptr ? "" : pointers[i]);
    if (description.sizes[i] < 0 && names[i].empty())
      names[i] = "anybit_unknown_" + std::to_string(++count);
  }
  for (std::size_t i = 0; i < description.rank; ++i) pointers[i] = names[i].c_str();
  check(api, api.SetSymbolicDimensions(info, pointers.data(), pointers.size()));
}

ElementType inferred_type(const OrtApi& api, const Version& version, ElementType x,
                          const OrtShapeInferContext* context) {
  const auto attributes = version.attributes(InferredAttributes(api, context));
  return result_type(*version.info, attributes.get(), x);
}

// The output has x's shape. Faults surface when the kernel is made: the host drops statuses here.
OrtStatus* infer(const OrtCustomOp* op, OrtShapeInferContext* context) noexcept {
  const Overload& self = overload(op);
  const OrtApi& api = self.host->api;
  try {
    OrtTensorTypeAndShapeInfo* info = nullptr;  // the context's own, made for this call
    check(api, api.ShapeInferContext_GetInputTypeShape(context, 0, &info));
    std::size_t rank = 0;
    check(api, api.GetDimensionsCount(info, &rank));
    if (rank == 0) return nullptr;  // a scalar, or a rank that is not known
    name_unknown_sizes(api, info);
    if (self.output == OrtElementType::undefined) {
      const auto x = element_type_of(self.inputs[0]).value();
      const ElementType type = inferred_type(api, self.versions[0], x, context);
      check(api, api.SetTensorElementType(info, ort_type_of(type)));
    }
    check(api, api.ShapeInferContext_SetOutputTypeShape(context, 0, info));
  } catch (...) {
    return nullptr;
  }
  return nullptr;
}

OrtStatus* make_kernel(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                       void** kernel) noexcept {
  return guarded(
      *api, [&] { *kernel = new Kernel(*api, info, overload(op).name, overload(op).versions); });
}

OrtStatus* compute(void* kernel, OrtKernelContext* context) noexcept {
  const auto& self = *static_cast<const Kernel*>(kernel);
  return guarded(self.api(), [&] { self.compute(context); });
}

OrtCharacteristic characteristic(const OrtCustomOp* op, std::size_t input) noexcept {
  if (input < overload(op).required) return OrtCharacteristic::required;
  return overload(op).host->minor >= takes_empty_names ? OrtCharacteristic::optional
                                                       : OrtCharacteristic::variadic;
}

std::size_t in_place(int** inputs, int** outputs) noexcept {
  static int first = 0;
  *inputs = *outputs = &first;
  return 1;
}

}  // namespace

void Overload::connect() {
  version = std::min(host->minor, newest_custom_op);
  GetName = [](const OrtCustomOp* self) { return overload(self).name.c_str(); };
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  GetInputType = [](const OrtCustomOp* self, std::size_t i) { return overload(self).inputs[i]; };
  GetInputTypeCount = [](const OrtCustomOp* self) { return overload(self).inputs.size(); };
  GetOutputType = [](const OrtCustomOp* self, std::size_t) { return overload(self).output; };
  GetOutputTypeCount = [](const OrtCustomOp*) { return std::size_t{1}; };
  KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  GetInputCharacteristic = characteristic;
  // The host demands that the type of a required output follows from one input alone.
  GetOutputCharacteristic = [](const OrtCustomOp* self, std::size_t) {
    return overload(self).output == OrtElementType::undefined ? OrtCharacteristic::optional
                                                              : OrtCharacteristic::required;
  };
  GetInputMemoryType = [](const OrtCustomOp*, std::size_t) { return OrtMemoryType::device; };
  GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
  GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
  GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  CreateKernelV2 = make_kernel;
  KernelComputeV2 = compute;
  if (required == inputs.size() || host->minor >= refuses_empty_variadic)
    InferOutputShapeFn = infer;
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return 1000; };
  if (output == inputs[0]) {
    GetMayInplace = in_place;
    ReleaseMayInplace = [](int*, int*) {};
  }
}

}  // namespace anybit::ort
