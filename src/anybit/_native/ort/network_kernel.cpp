// SPDX-License-Identifier: Apache-2.0
#include "network_kernel.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <span>

#include "workers.hpp"

namespace anybit::ort {

namespace {

using lowbit::Network;

constexpr int times_to_count = 3;

constexpr const char* operator_name = "IntegerNetwork";

struct ProgramInput {
  const char* name;
  OrtElementType type;
};
constexpr std::array<ProgramInput, 4> program_inputs{{{"words", OrtElementType::int64},
                                                      {"bytes", OrtElementType::uint8},
                                                      {"integers", OrtElementType::int32},
                                                      {"floats", OrtElementType::float32}}};

// Returns the elements of a constant input.
template <class Element>
std::span<const Element> constant(const OrtApi& api, const OrtKernelInfo* info, std::size_t i) {
  const ProgramInput& expected = program_inputs[i];
  int is_constant = 0;
  const OrtValue* value = nullptr;
  check(api, api.KernelInfoGetConstantInput_tensor(info, i, &is_constant, &value));
  if (is_constant == 0 || value == nullptr)
    throw Error(Error::Kind::value,
                std::string(expected.name) +
                    " must be a constant: an initializer that is not an input of the graph");
  Description description;
  description.read(api, value);
  if (description.type != expected.type)
    throw Error(Error::Kind::type, std::string(expected.name) + " must have ONNX element type " +
                                       std::to_string(static_cast<int>(expected.type)) + ", got " +
                                       std::to_string(static_cast<int>(description.type)));
  std::int64_t size = 1;
  for (std::size_t axis = 0; axis < description.rank; ++axis) size *= description.sizes[axis];
  return {static_cast<const Element*>(data_of(api, value)), static_cast<std::size_t>(size)};
}

// (n, 3, 32, 32)
std::string shape_text(const std::string& first, std::span<const std::int64_t> sizes) {
  std::string text = "(" + first;
  for (const std::int64_t size : sizes)
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + ")";
}

// Axes in front of those of a row. There is at least one, and all inputs have the same.
struct RowAxes {
  std::array<std::int64_t, max_rank> sizes{};
  std::size_t count = 0;  // 0 before the first input

  std::int64_t rows() const {
    // Only an array without elements may have too many positions.
    const auto end = sizes.begin() + static_cast<std::ptrdiff_t>(count);
    return std::find(sizes.begin(), end, 0) != end
               ? 0
               : std::accumulate(sizes.begin(), end, std::int64_t{1}, std::multiplies<>());
  }

  // Throws Error for an input of other axes.
  void meet(std::size_t i, const Description& x, const Network::Sizes& row) {
    const std::size_t axes = x.rank - std::min(x.rank, row.size());
    const bool fits = x.type == OrtElementType::float32 && axes > 0 &&
                      std::equal(row.begin(), row.end(), x.sizes + axes);
    if (fits && count == 0) {
      count = axes;
      std::copy_n(x.sizes, axes, sizes.begin());
    }
    if (fits && axes == count && std::equal(x.sizes, x.sizes + axes, sizes.begin())) return;
    std::string first;
    for (std::size_t axis = 0; axis < count; ++axis)
      first += (axis > 0 ? ", " : "") + std::to_string(sizes[axis]);
    throw Error(Error::Kind::value, "input " + std::to_string(i) + " must be float32 of shape " +
                                        shape_text(count == 0 ? "n" : first, row) + ", got " +
                                        shape_text("", {x.sizes, x.rank}));
  }
};

}  // namespace

NetworkKernel::NetworkKernel(const OrtApi& api, const OrtKernelInfo* info)
    : node_(api, info, operator_name) {
  located(node_.label(), [&] {
    read_program(info);
    check_counts(info);
  });
}

void NetworkKernel::read_program(const OrtKernelInfo* info) {
  network_ = std::make_unique<Network>(lowbit::Encoded{
      constant<std::int64_t>(api(), info, 0), constant<std::uint8_t>(api(), info, 1),
      constant<std::int32_t>(api(), info, 2), constant<float>(api(), info, 3)});
}

void NetworkKernel::check_counts(const OrtKernelInfo* info) const {
  std::size_t outputs = 0;
  check(api(), api().KernelInfo_GetOutputCount(info, &outputs));
  const std::size_t inputs = node_.inputs() - std::min(node_.inputs(), program_inputs.size());
  if (inputs != network_->inputs().size() || outputs != network_->outputs().size())
    throw Error(Error::Kind::value,
                "the program has " + std::to_string(network_->inputs().size()) + " inputs and " +
                    std::to_string(network_->outputs().size()) + " outputs, the node " +
                    std::to_string(inputs) + " and " + std::to_string(outputs));
}

void NetworkKernel::compute(OrtKernelContext* context) const {
  located(node_.label(), [&] { run(context); });
}

void NetworkKernel::run(OrtKernelContext* context) const {
  const std::vector<Network::Sizes>&inputs = network_->inputs(), &outputs = network_->outputs();
  std::vector<const float*> from(inputs.size());
  std::vector<float*> to(outputs.size());
  std::vector<std::unique_ptr<float[]>> unread;
  RowAxes axes;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const OrtValue* value = nullptr;
    check(api(), api().KernelContext_GetInput(context, i + program_inputs.size(), &value));
    if (value == nullptr)
      throw Error(Error::Kind::value, "input " + std::to_string(i) + " is missing");
    Description x;
    x.read(api(), value);
    axes.meet(i, x, inputs[i]);
    from[i] = static_cast<const float*>(data_of(api(), value));
  }
  const std::int64_t rows = axes.rows();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::size_t rank = axes.count + outputs[i].size();
    if (rank > max_rank)
      throw Error(Error::Kind::value, "output " + std::to_string(i) + " would have " +
                                          std::to_string(rank) + " axes, more than " +
                                          std::to_string(max_rank));
    std::array<std::int64_t, max_rank> shape = axes.sizes;
    std::copy(outputs[i].begin(), outputs[i].end(),
              shape.begin() + static_cast<std::ptrdiff_t>(axes.count));
    OrtValue* value = nullptr;
    check(api(), api().KernelContext_GetOutput(context, i, shape.data(), rank, &value));
    if (value != nullptr) {
      to[i] = static_cast<float*>(data_of(api(), value));
      continue;
    }
    // The output is unused.
    std::int64_t size = rows;
    for (const std::int64_t dimension : outputs[i]) size *= dimension;
    unread.push_back(std::make_unique<float[]>(static_cast<std::size_t>(size)));
    to[i] = unread.back().get();
  }
  const SessionWorkers workers(api(), context, threads_for(context, rows));
  network_->run(from.data(), to.data(), rows, workers);
}

// Number of threads of the session, counted in the first calls with enough work.
int NetworkKernel::threads_for(OrtKernelContext* context, std::int64_t rows) const {
  const SessionWorkers workers(api(), context);
  if (network_->nanoseconds(rows) < workers.serial_nanoseconds()) return 1;
  int threads = threads_.load(std::memory_order_relaxed);
  if (counted_.load(std::memory_order_relaxed) >= times_to_count) return threads;
  counted_.fetch_add(1, std::memory_order_relaxed);
  threads = std::max(threads, workers.count_threads());
  threads_.store(threads, std::memory_order_relaxed);
  return threads;
}

NetworkOperator::NetworkOperator(const Host& host) : OrtCustomOp{} {
  connect_host(*this, host.minor);
  connect_kernel<NetworkKernel>(*this);
  GetName = [](const OrtCustomOp*) { return operator_name; };
  GetInputType = [](const OrtCustomOp*, std::size_t i) {
    return i < program_inputs.size() ? program_inputs[i].type : OrtElementType::float32;
  };
  GetInputTypeCount = [](const OrtCustomOp*) { return program_inputs.size() + 1; };
  GetOutputType = [](const OrtCustomOp*, std::size_t) { return OrtElementType::float32; };
  GetOutputTypeCount = [](const OrtCustomOp*) { return std::size_t{1}; };
  GetInputCharacteristic = [](const OrtCustomOp*, std::size_t i) {
    return i < program_inputs.size() ? OrtCharacteristic::required : OrtCharacteristic::variadic;
  };
  GetOutputCharacteristic = [](const OrtCustomOp*, std::size_t) {
    return OrtCharacteristic::variadic;
  };
}

}  // namespace anybit::ort
