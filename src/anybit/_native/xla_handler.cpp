// SPDX-License-Identifier: Apache-2.0
#include "xla_handler.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "../ops/operators.hpp"
#include "application.hpp"
#include "threads.hpp"
#include "xla_host.hpp"

namespace anybit::xla {
namespace {

// Below this a second thread costs more than it saves.
constexpr std::int64_t elements_per_thread = 128 * 1024;

constexpr std::int32_t oldest_minor = 1;

// Hosts may insist on their own minor version. All minor versions are the same for what is used
// here, and `check_layout` looks; another major version gets an answer that it refuses. The oldest
// hosts do not show their version when they ask.
HostError* describe(const Api* api, Metadata& metadata) {
  const bool shown = api != nullptr && api->version.major == 0;
  metadata.version = {{sizeof(ApiVersion), nullptr}, 0, shown ? api->version.minor : oldest_minor};
  metadata.traits = 0;
  if (metadata.struct_size > offsetof(Metadata, state_type)) metadata.state_type = 0;
  return nullptr;
}

MetadataExtension* asked_for_metadata(const CallFrame& frame) {
  for (Extension* each = frame.header.extensions; each != nullptr; each = each->next)
    if (each->type == metadata_extension) return reinterpret_cast<MetadataExtension*>(each);
  return nullptr;
}

// x as large as the result: under vmap, parameters may have an axis that x is only repeated along.
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
typename Op::Attributes attributes_of(const Attributes& given) {
  typename Op::Attributes attributes;
  attributes.visit([&](std::string_view name, auto& value, auto... /*onnx_names*/) {
    const std::int64_t place = find(given, name);
    if (place >= 0) read_attribute(given, place, value);
  });
  return attributes;
}

template <class Op>
void compute(const CallFrame& frame) {
  check_layout(frame);
  // Parameters come in a shape that broadcasts: what axis they belong to has been settled.
  static const OperatorInfo op = [] {
    OperatorInfo info = operator_info<Op, Operators>();
    info.parameter_axis = nullptr;
    return info;
  }();
  const auto given = static_cast<std::size_t>(frame.arguments.size);
  if (given < 1 || given > Op::inputs.size() || frame.results.size != 1)
    fail("takes 1 to " + std::to_string(Op::inputs.size()) + " arrays and gives one");
  const auto attributes = attributes_of<Op>(frame.attributes);
  const Tensor out = tensor_at(frame.results, 0);
  const Repeated x(tensor_at(frame.arguments, 0), out);
  if (out.type != result_type(op, &attributes, x.tensor().type))
    fail("the result cannot be " + std::string(name_of(out.type)));
  std::array<Tensor, Op::inputs.size()> inputs;
  inputs[0] = x.tensor();
  for (std::size_t i = 1; i < given; ++i)
    inputs[i] = tensor_at(frame.arguments, static_cast<std::int64_t>(i));
  const Application application(op, &attributes, inputs, out);
  parallel_for(application.size(), elements_per_thread,
               [&](std::int64_t first, std::int64_t last) { application.run(first, last); });
}

template <class Op>
HostError* handle(CallFrame* frame) {
  if (const MetadataExtension* const asked = asked_for_metadata(*frame))
    return describe(frame->api, *asked->metadata);
  return guarded(*frame->api, [frame] {
    if (frame->stage == Stage::execute) compute<Op>(*frame);
  });
}

}  // namespace

void for_each_handler(const std::function<void(std::string_view name, void* handler)>& visit) {
  Operators::for_each([&]<class Op>() {
    visit(Op::name, reinterpret_cast<void*>(static_cast<Handler*>(&handle<Op>)));
  });
}

}  // namespace anybit::xla
