// SPDX-License-Identifier: Apache-2.0
#include "handler.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "_native/engine/any_application.hpp"
#include "_native/engine/backward.hpp"
#include "_native/threads/pool.hpp"
#include "host.hpp"
#include "ops/operators.hpp"

namespace anybit::xla {
namespace {

constexpr std::int32_t oldest_minor = 1;

// Hosts may require their own minor version. All minor versions agree in the parts used here, which
// `check_layout` verifies; another major version gets a reply that it rejects. The oldest hosts do
// not report their version.
HostError* describe(const Api* api, Metadata& metadata) {
  const bool shown = api != nullptr && api->version.major == 0;
  metadata.version = {{sizeof(ApiVersion), nullptr}, 0, shown ? api->version.minor : oldest_minor};
  metadata.traits = 0;
  if (metadata.struct_size > offsetof(Metadata, state_type)) metadata.state_type = 0;
  return nullptr;
}

MetadataExtension* asked_for_metadata(const CallFrame& frame) {
  for (Extension* extension = frame.header.extensions; extension != nullptr;
       extension = extension->next)
    if (extension->type == metadata_extension)
      return reinterpret_cast<MetadataExtension*>(extension);
  return nullptr;
}

// Broadcasts x to the result: under vmap, parameters may have an axis that x lacks.
class Repeated {
 public:
  Repeated(const Tensor& x, const Tensor& out) : tensor_(x) {
    if (x.rank != out.rank) fail("x and the result must have the same rank");
    std::int64_t step = size_of(x.type);
    for (int i = x.rank - 1; i >= 0; --i) {
      if (x.shape[i] != out.shape[i] && x.shape[i] != 1)
        fail("x of size " + std::to_string(x.shape[i]) + " does not fit a result of size " +
             std::to_string(out.shape[i]));
      strides_[static_cast<std::size_t>(i)] = x.shape[i] == out.shape[i] ? step : 0;
      step *= x.shape[i];
    }
    tensor_.shape = out.shape;
    tensor_.strides = strides_.data();
  }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;

  const Tensor& tensor() const { return tensor_; }

 private:
  Tensor tensor_;
  std::array<std::int64_t, max_rank> strides_;
};

template <class Op>
typename Op::Attributes attributes_of(const Attributes& source) {
  typename Op::Attributes attributes;
  attributes.visit([&](std::string_view name, auto& value, auto... /*onnx_names*/) {
    const std::int64_t place = find(source, name);
    if (place >= 0) read_attribute(source, place, value);
  });
  return attributes;
}

// Parameters arrive in a shape that broadcasts: their axis is resolved already.
template <class Op>
const OperatorInfo& broadcasting() {
  static const OperatorInfo op = [] {
    OperatorInfo info = operator_info<Op, Operators>();
    info.parameter_axis = nullptr;
    return info;
  }();
  return op;
}

// Arguments from `first` on, as inputs of the operator; omitted ones are the last.
template <class Op>
auto inputs_from(const CallFrame& frame, std::int64_t first) {
  const std::int64_t count = frame.arguments.size - first;
  if (count < 1 || count > static_cast<std::int64_t>(Op::inputs.size()))
    fail("takes 1 to " + std::to_string(Op::inputs.size()) + " inputs, got " +
         std::to_string(count));
  std::array<Tensor, Op::inputs.size()> inputs;
  for (std::int64_t i = 0; i < count; ++i)
    inputs[static_cast<std::size_t>(i)] = tensor_at(frame.arguments, first + i);
  return inputs;
}

template <class Op>
void compute(const CallFrame& frame) {
  check_layout(frame);
  if (frame.results.size != 1) fail("gives one array");
  const OperatorInfo& op = broadcasting<Op>();
  const auto attributes = attributes_of<Op>(frame.attributes);
  auto inputs = inputs_from<Op>(frame, 0);
  const Tensor out = tensor_at(frame.results, 0);
  const Repeated x(inputs[0], out);
  inputs[0] = x.tensor();
  if (out.type != result_type(op, &attributes, inputs[0].type))
    fail("the result cannot be " + std::string(name_of(out.type)));
  AnyApplication(op, &attributes, inputs, out).run(pool());
}

bool same_shape(const Tensor& a, const Tensor& b) {
  return a.rank == b.rank && std::equal(a.shape, a.shape + a.rank, b.shape);
}

// Arguments are the upstream gradient and the inputs; results are the gradients of the inputs whose
// bits are set in the attribute `requested`.
template <class Op>
void differentiate(const CallFrame& frame) {
  check_layout(frame);
  const auto attributes = attributes_of<Op>(frame.attributes);
  const auto inputs = inputs_from<Op>(frame, 1);
  std::int64_t requested = 0;
  const std::int64_t place = find(frame.attributes, "requested");
  if (place < 0) fail("misses the attribute requested");
  read_attribute(frame.attributes, place, requested);
  Backward::Gradients gradients;
  gradients.upstream = tensor_at(frame.arguments, 0);
  std::int64_t results = 0;
  for (const int input : broadcasting<Op>().differentiable) {
    if ((requested >> input & 1) == 0) continue;
    if (results == frame.results.size) fail("wants more gradients than there are results");
    const Tensor result = tensor_at(frame.results, results++);
    const Tensor& of = inputs[static_cast<std::size_t>(input)];
    if (!of.given || !same_shape(result, of) || result.type != of.type)
      fail("a gradient is like its input");
    (input == 0 ? gradients.of_x : gradients.of_inputs[input]) = result;
  }
  if (results != frame.results.size) fail("has results that are not gradients");
  Backward(broadcasting<Op>(), &attributes, inputs, gradients).run(pool());
}

template <void (*work)(const CallFrame&)>
HostError* handle(CallFrame* frame) {
  if (const MetadataExtension* const extension = asked_for_metadata(*frame))
    return describe(frame->api, *extension->metadata);
  return guarded(*frame->api, [frame] {
    if (frame->stage == Stage::execute) work(*frame);
  });
}

}  // namespace

void for_each_handler(const Visit& visit) {
  const auto show = [&visit](const std::string& name, Handler* handler) {
    visit(name, reinterpret_cast<void*>(handler));
  };
  Operators::for_each([&]<class Op>() {
    const std::string name(Op::name);
    show(name, &handle<&compute<Op>>);
    if constexpr (requires { Op::differentiable; })
      show(name + "_backward", &handle<&differentiate<Op>>);
  });
}

}  // namespace anybit::xla
