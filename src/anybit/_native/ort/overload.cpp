// SPDX-License-Identifier: Apache-2.0
#include "overload.hpp"

#include <algorithm>

namespace anybit::ort {

namespace {

const Signature& signature(const OrtCustomOp* op) { return *static_cast<const Signature*>(op); }

OrtCharacteristic characteristic(const OrtCustomOp* op, std::size_t input) noexcept {
  if (input < signature(op).required) return OrtCharacteristic::required;
  return signature(op).host->minor >= takes_empty_names ? OrtCharacteristic::optional
                                                        : OrtCharacteristic::variadic;
}

std::size_t in_place(int** inputs, int** outputs) noexcept {
  static int first = 0;
  *inputs = *outputs = &first;
  return 1;
}

}  // namespace

void connect_host(OrtCustomOp& op, std::uint32_t minor) {
  op.version = std::min(minor, newest_custom_op);
  op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
  op.GetInputMemoryType = [](const OrtCustomOp*, std::size_t) { return OrtMemoryType::device; };
  op.GetVariadicInputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  op.GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  op.GetStartVersion = [](const OrtCustomOp*) { return 1; };
  op.GetEndVersion = [](const OrtCustomOp*) { return 1000; };
}

void Signature::connect() {
  connect_host(*this, host->minor);
  GetName = [](const OrtCustomOp* self) { return signature(self).name.c_str(); };
  GetInputType = [](const OrtCustomOp* self, std::size_t i) { return signature(self).inputs[i]; };
  GetInputTypeCount = [](const OrtCustomOp* self) { return signature(self).inputs.size(); };
  GetOutputType = [](const OrtCustomOp* self, std::size_t) { return signature(self).output; };
  GetOutputTypeCount = [](const OrtCustomOp*) { return std::size_t{1}; };
  GetInputCharacteristic = characteristic;
  // The host requires that a single input determines the type of a required output.
  GetOutputCharacteristic = [](const OrtCustomOp* self, std::size_t) {
    return signature(self).attributes_decide_output() ? OrtCharacteristic::optional
                                                      : OrtCharacteristic::required;
  };
  GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
  if (output == inputs[0]) {
    GetMayInplace = in_place;
    ReleaseMayInplace = [](int*, int*) {};
  }
}

}  // namespace anybit::ort
