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

void Signature::connect() {
  version = std::min(host->minor, newest_custom_op);
  GetName = [](const OrtCustomOp* self) { return signature(self).name.c_str(); };
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
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
  GetInputMemoryType = [](const OrtCustomOp*, std::size_t) { return OrtMemoryType::device; };
  GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
  GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
  GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 1; };
  GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return 1000; };
  if (output == inputs[0]) {
    GetMayInplace = in_place;
    ReleaseMayInplace = [](int*, int*) {};
  }
}

}  // namespace anybit::ort
