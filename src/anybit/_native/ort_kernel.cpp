// SPDX-License-Identifier: Apache-2.0
#include "ort_kernel.hpp"

#include <algorithm>

namespace anybit::ort {

namespace {

// Work is handed to ONNX Runtime's threads in pieces of this many elements: large enough to be
// worth starting, small enough to balance.
constexpr std::int64_t piece = 32 * 1024;

// What the graph says about an input or an output of a node; nothing for one that is not there.
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

bool describe_input(const OrtApi& api, const OrtKernelInfo* info, std::size_t i,
                    Description& description) {
  return describe(
      api, [&](OrtTypeInfo** type) { return api.KernelInfo_GetInputTypeInfo(info, i, type); },
      description);
}

// IntQuant node 'name', or, since names are optional, IntQuant node that computes 'output'.
std::string node_name(const OrtApi& api, const OrtKernelInfo* info, std::string_view onnx_name) {
  const std::string name = text_from(api, [&](char* out, std::size_t* size) {
    return api.KernelInfo_GetNodeName(info, out, size);
  });
  if (!name.empty()) return std::string(onnx_name) + " node '" + name + "'";
  return std::string(onnx_name) + " node that computes '" +
         text_from(api,
                   [&](char* out, std::size_t* size) {
                     return api.KernelInfo_GetOutputName(info, 0, out, size);
                   }) +
         "'";
}

// Replaces sizes of x that are not known by what the parameters would need: any fault that is
// then found is one for every x.
void complete(Description& x, std::span<const Tensor> parameters) {
  const bool known_rank = x.rank > 0;
  for (const Tensor& parameter : parameters) {
    const auto rank = static_cast<std::size_t>(parameter.rank);
    if (!known_rank && rank > x.rank) {
      std::copy_backward(x.sizes, x.sizes + x.rank, x.sizes + rank);
      std::fill_n(x.sizes, rank - x.rank, -1);
      x.rank = rank;
    }
    for (std::size_t i = 1; i <= std::min(rank, x.rank); ++i) {
      std::int64_t& size = x.sizes[x.rank - i];
      if (size < 0 && parameter.shape[rank - i] != 1) size = parameter.shape[rank - i];
    }
  }
  std::replace_if(x.sizes, x.sizes + x.rank, [](std::int64_t size) { return size < 0; }, 1);
}

}  // namespace

Kernel::Kernel(const OrtApi& api, const OrtKernelInfo* info, std::string_view onnx_name,
               std::span<const Version> versions)
    : api_(api), node_(node_name(api, info, onnx_name)) {
  located(node_, [&] {
    choose_version(info, versions);
    read_constants(info);
    check_constants(info);
  });
}

void Kernel::choose_version(const OrtKernelInfo* info, std::span<const Version> versions) {
  std::size_t declared = 0;
  check(api_, api_.KernelInfo_GetInputCount(info, &declared));
  std::string known;
  Description unused;
  for (std::size_t i = 0; i < declared; ++i)
    if (describe_input(api_, info, i, unused)) inputs_ = i + 1;
  for (const Version& version : versions) {
    if (inputs_ >= version.least_inputs() && inputs_ <= version.most_inputs()) {
      op_ = version.info;
      attributes_ = version.attributes(NodeAttributes(api_, info));
      return;
    }
    known += (known.empty() ? "" : " or ") + std::to_string(version.least_inputs());
    if (version.most_inputs() > version.least_inputs())
      known += " to " + std::to_string(version.most_inputs());
  }
  throw Error(Error::Kind::value, "takes " + known + " inputs, got " + std::to_string(inputs_));
}

void Kernel::read_constants(const OrtKernelInfo* info) {
  for (std::size_t i = 1; i < inputs_; ++i) {
    int is_constant = 0;
    const OrtValue* value = nullptr;
    check(api_, api_.KernelInfoGetConstantInput_tensor(info, i, &is_constant, &value));
    if (is_constant == 0 || value == nullptr) continue;
    auto constant = std::make_unique<Constant>();
    constant->description.read(api_, value);
    constant->tensor = constant->description.with_data(data_of(api_, value), name_of_input(i));
    constants_[i] = std::move(constant);
  }
}

void Kernel::check_constants(const OrtKernelInfo* info) const {
  Description x;
  if (!describe_input(api_, info, 0, x)) throw Error(Error::Kind::type, "x has no type");
  const ElementType x_type = x.with_data(nullptr, name_of_input(0)).type;
  check_output(info, x_type);

  // A number that every input may hold stands in for what is not known before a run.
  double one = 1;
  std::array<Tensor, max_inputs> inputs;
  for (std::size_t i = 1; i < inputs_; ++i)
    inputs[i] = constants_[i] ? constants_[i]->tensor
                              : Tensor{&one, ElementType::float64, 0, nullptr, nullptr, true, true};
  if (op_->parameter_axis != nullptr) {
    // Here the sizes of the parameters must be those of x, which cannot be guessed.
    const bool known = x.rank > 0 && std::all_of(x.sizes, x.sizes + x.rank,
                                                 [](std::int64_t size) { return size >= 0; });
    if (x.rank > 0) op_->parameter_axis(attributes_.get(), static_cast<int>(x.rank));
    for (std::size_t i = 1; i < inputs_; ++i)
      if (!known || !constants_[i]) return;
  }
  complete(x, std::span(inputs).subspan(1, inputs_ - 1));
  inputs[0] = x.with_data(nullptr, name_of_input(0));
  std::array<Range, max_inputs> ranges;
  check_inputs(*op_, attributes_.get(), {inputs.data(), inputs_}, ranges.data());
}

void Kernel::check_output(const OrtKernelInfo* info, ElementType x) const {
  const ElementType result = result_type(*op_, attributes_.get(), x);
  Description output;
  const bool described = describe(
      api_, [&](OrtTypeInfo** type) { return api_.KernelInfo_GetOutputTypeInfo(info, 0, type); },
      output);
  if (described && output.type != ort_type_of(result))
    throw Error(Error::Kind::type, "computes " + std::string(name_of(result)) +
                                       ", but the graph declares its output as ONNX element type " +
                                       std::to_string(static_cast<int>(output.type)) +
                                       "; correct one of them");
}

void Kernel::compute(OrtKernelContext* context) const {
  located(node_, [&] { run(context); });
}

void Kernel::read_inputs(OrtKernelContext* context, Descriptions& descriptions,
                         Inputs& inputs) const {
  for (std::size_t i = 0; i < inputs_; ++i) {
    if (constants_[i]) {
      inputs[i] = constants_[i]->tensor;
      continue;
    }
    const OrtValue* value = nullptr;
    check(api_, api_.KernelContext_GetInput(context, i, &value));
    if (value == nullptr) continue;  // an optional input between others
    descriptions[i].read(api_, value);
    inputs[i] = descriptions[i].with_data(data_of(api_, value), name_of_input(i));
  }
}

void Kernel::run(OrtKernelContext* context) const {
  Descriptions descriptions;
  Inputs inputs;
  read_inputs(context, descriptions, inputs);
  const Tensor& x = inputs[0];
  OrtValue* value = nullptr;
  check(api_, api_.KernelContext_GetOutput(context, 0, x.shape, static_cast<std::size_t>(x.rank),
                                           &value));
  if (value == nullptr) return;  // nobody reads it
  const Tensor out{data_of(api_, value),
                   result_type(*op_, attributes_.get(), x.type),
                   x.rank,
                   x.shape,
                   nullptr,
                   true,
                   false};
  Application application(*op_, attributes_.get(), {inputs.data(), inputs_}, out);
  if (application.size() <= piece) {
    application.run(0, application.size());
    return;
  }
  const auto run_piece = [](void* whole, std::size_t index) {
    const auto& all = *static_cast<const Application*>(whole);
    const std::int64_t first = static_cast<std::int64_t>(index) * piece;
    all.run(first, std::min(first + piece, all.size()));
  };
  const auto pieces = static_cast<std::size_t>((application.size() + piece - 1) / piece);
  check(api_, api_.KernelContext_ParallelFor(context, run_piece, pieces, 0, &application));
}

}  // namespace anybit::ort
