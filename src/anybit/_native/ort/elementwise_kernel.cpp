// SPDX-License-Identifier: Apache-2.0
#include "elementwise_kernel.hpp"

#include <algorithm>
#include <atomic>

#include "workers.hpp"

namespace anybit::ort {

namespace {

// Replaces unknown sizes of x by sizes that fit the parameters: an error that remains is one for
// all x.
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

// The host takes an unnamed size literally, as -1: unknown sizes get distinct names.
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

}  // namespace

ElementwiseKernel::ElementwiseKernel(const OrtApi& api, const OrtKernelInfo* info,
                                     std::string_view onnx_name, const Declaration& versions)
    : node_(api, info, onnx_name) {
  located(node_.label(), [&] {
    choose_version(info, versions);
    node_.read_constants(info, op_->inputs);
    check_constants(info);
  });
}

void ElementwiseKernel::choose_version(const OrtKernelInfo* info,
                                       std::span<const Version> versions) {
  const std::size_t count = node_.inputs();
  std::string supported;
  for (const Version& version : versions) {
    if (count >= version.least_inputs() && count <= version.most_inputs()) {
      op_ = version.info;
      attributes_ = version.attributes(NodeAttributes(api(), info));
      return;
    }
    supported += (supported.empty() ? "" : " or ") + std::to_string(version.least_inputs());
    if (version.most_inputs() > version.least_inputs())
      supported += " to " + std::to_string(version.most_inputs());
  }
  throw Error(Error::Kind::value, "takes " + supported + " inputs, got " + std::to_string(count));
}

void ElementwiseKernel::check_constants(const OrtKernelInfo* info) const {
  Description x;
  if (!node_.describe_input(info, 0, x)) throw Error(Error::Kind::type, "x has no type");
  const ElementType x_type = x.with_data(nullptr, op_->inputs[0].name).type;
  check_output(info, x_type);

  // Values that are unknown before a run are replaced by a number that all inputs may hold.
  double one = 1;
  Node::Inputs inputs;
  bool all_known = x.rank > 0 && std::all_of(x.sizes, x.sizes + x.rank,
                                             [](std::int64_t size) { return size >= 0; });
  const std::size_t count = node_.inputs();
  for (std::size_t i = 1; i < count; ++i) {
    const Tensor* const constant = node_.constant(i);
    all_known = all_known && constant != nullptr;
    inputs[i] = constant != nullptr
                    ? *constant
                    : Tensor{&one, ElementType::float64, 0, nullptr, nullptr, true, true};
  }
  if (op_->blocks != nullptr && x.rank == 0) return;  // the axis of blocks needs the rank
  if (op_->parameter_axis != nullptr) {
    // The sizes of these parameters must equal those of x, which are unknown.
    if (x.rank > 0) op_->parameter_axis(attributes_.get(), static_cast<int>(x.rank));
    if (!all_known) return;
  }
  complete(x, std::span(inputs).subspan(1, count - 1));
  inputs[0] = x.with_data(nullptr, op_->inputs[0].name);
  std::array<Range, max_inputs> ranges;
  check_inputs(*op_, attributes_.get(), {inputs.data(), count}, ranges.data());
}

void ElementwiseKernel::check_output(const OrtKernelInfo* info, ElementType x) const {
  const ElementType result = result_type(*op_, attributes_.get(), x);
  Description output;
  if (node_.describe_output(info, output) && output.type != ort_type_of(result))
    throw Error(Error::Kind::type, "computes " + std::string(name_of(result)) +
                                       ", but the graph declares its output as ONNX element type " +
                                       std::to_string(static_cast<int>(output.type)) +
                                       "; correct one of them");
}

void ElementwiseKernel::compute(OrtKernelContext* context) const {
  located(node_.label(), [&] { run(context); });
}

void ElementwiseKernel::run(OrtKernelContext* context) const {
  Node::Descriptions descriptions;
  Node::Inputs inputs;
  node_.read_inputs(context, op_->inputs, descriptions, inputs);
  const Tensor& x = inputs[0];
  OrtValue* value = nullptr;
  check(api(), api().KernelContext_GetOutput(context, 0, x.shape, static_cast<std::size_t>(x.rank),
                                             &value));
  if (value == nullptr) return;  // the output is unused
  const Tensor out{data_of(api(), value),
                   result_type(*op_, attributes_.get(), x.type),
                   x.rank,
                   x.shape,
                   nullptr,
                   true,
                   false};
  AnyApplication(*op_, attributes_.get(), {inputs.data(), node_.inputs()}, out)
      .run(SessionWorkers(api(), context));
}

void ElementwiseKernel::infer(const OrtApi& api, OrtShapeInferContext* context,
                              const Declaration& versions, OrtElementType x,
                              bool attributes_decide_output) {
  OrtTensorTypeAndShapeInfo* info = nullptr;  // owned by the context, created for this call
  check(api, api.ShapeInferContext_GetInputTypeShape(context, 0, &info));
  std::size_t rank = 0;
  check(api, api.GetDimensionsCount(info, &rank));
  if (rank == 0) return;  // a scalar, or an unknown rank
  name_unknown_sizes(api, info);
  if (attributes_decide_output) {
    const Version& version = versions[0];
    const auto attributes = version.attributes(InferredAttributes(api, context));
    const ElementType type =
        result_type(*version.info, attributes.get(), element_type_of(x).value());
    check(api, api.SetTensorElementType(info, ort_type_of(type)));
  }
  check(api, api.ShapeInferContext_SetOutputTypeShape(context, 0, info));
}

}  // namespace anybit::ort
