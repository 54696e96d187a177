// SPDX-License-Identifier: Apache-2.0
#include "node.hpp"

namespace anybit::ort {

namespace {

template <class Get>
bool describe(const OrtApi& api, const Get& get, Description& description) {
  OrtTypeInfo* type = nullptr;
  if (!succeeded(api, get(&type)) || type == nullptr) return false;
  const auto release = [&api](OrtTypeInfo* owned) { api.ReleaseTypeInfo(owned); };
  const std::unique_ptr<OrtTypeInfo, decltype(release)> owned(type, release);
  const OrtTensorTypeAndShapeInfo* info = nullptr;
  check(api, api.CastTypeInfoToTensorInfo(type, &info));
  if (info == nullptr) return false;
  description.read(api, info);
  return true;
}

std::string label_of(const OrtApi& api, const OrtKernelInfo* info, std::string_view onnx_name) {
  std::string name = text_from(api, [&](char* out, std::size_t* size) {
    return api.KernelInfo_GetNodeName(info, out, size);
  });
  if (name.empty())
    name = text_from(api, [&](char* out, std::size_t* size) {
      return api.KernelInfo_GetOutputName(info, 0, out, size);
    });
  return "node '" + name + "' (" + std::string(onnx_name) + ")";
}

}  // namespace

Node::Node(const OrtApi& api, const OrtKernelInfo* info, std::string_view onnx_name)
    : api_(api), label_(label_of(api, info, onnx_name)) {
  located(label_, [&] {
    std::size_t declared = 0;
    check(api_, api_.KernelInfo_GetInputCount(info, &declared));
    Description unused;
    for (std::size_t i = 0; i < declared; ++i)
      if (describe_input(info, i, unused)) inputs_ = i + 1;
  });
}

bool Node::describe_input(const OrtKernelInfo* info, std::size_t i,
                          Description& description) const {
  return describe(
      api_, [&](OrtTypeInfo** type) { return api_.KernelInfo_GetInputTypeInfo(info, i, type); },
      description);
}

bool Node::describe_output(const OrtKernelInfo* info, Description& description) const {
  return describe(
      api_, [&](OrtTypeInfo** type) { return api_.KernelInfo_GetOutputTypeInfo(info, 0, type); },
      description);
}

void Node::read_constants(const OrtKernelInfo* info, std::span<const Input> declared) {
  for (std::size_t i = 1; i < inputs_; ++i) {
    int is_constant = 0;
    const OrtValue* value = nullptr;
    check(api_, api_.KernelInfoGetConstantInput_tensor(info, i, &is_constant, &value));
    if (is_constant == 0 || value == nullptr) continue;
    auto constant = std::make_unique<Constant>();
    constant->description.read(api_, value);
    constant->tensor = constant->description.with_data(data_of(api_, value), declared[i].name);
    constants_[i] = std::move(constant);
  }
}

const Tensor* Node::constant(std::size_t i) const {
  return constants_[i] ? &constants_[i]->tensor : nullptr;
}

void Node::read_inputs(OrtKernelContext* context, std::span<const Input> declared,
                       Descriptions& descriptions, Inputs& inputs) const {
  for (std::size_t i = 0; i < inputs_; ++i) {
    if (const Tensor* const value = constant(i)) {
      inputs[i] = *value;
      continue;
    }
    const OrtValue* value = nullptr;
    check(api_, api_.KernelContext_GetInput(context, i, &value));
    if (value == nullptr) continue;  // an omitted optional input
    descriptions[i].read(api_, value);
    inputs[i] = descriptions[i].with_data(data_of(api_, value), declared[i].name);
  }
}

}  // namespace anybit::ort
