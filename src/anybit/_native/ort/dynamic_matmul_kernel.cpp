// SPDX-License-Identifier: Apache-2.0
#include "dynamic_matmul_kernel.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "attributes.hpp"
#include "workers.hpp"

namespace anybit::ort {

namespace {

using Sizes = lowbit::DynamicMatMul::Sizes;

constexpr const char* dynamic_matmul_name = "DynamicMatMul";

std::string format_shape(const Description& x) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < x.rank; ++axis)
    text += (axis > 0 ? ", " : "") + std::to_string(x.sizes[axis]);
  return text + ")";
}

// Axes of matrices, and the axes before these, which are broadcast.
struct Shapes {
  Sizes sizes;
  std::size_t rank = 0;
  std::array<std::int64_t, max_rank> y{};
  std::int64_t groups = 1;

  // Throws Error for shapes that cannot be multiplied.
  Shapes(const Description& first, const Description& second, bool transposed) {
    const auto refuse = [&] {
      throw Error(Error::Kind::value, "inputs of shapes " + format_shape(first) + " and " +
                                          format_shape(second) + " cannot be multiplied" +
                                          (transposed ? ", the second transposed" : ""));
    };
    for (const Description* x : {&first, &second})
      if (x->type != OrtElementType::float32)
        throw Error(Error::Kind::type, "inputs must be float32");
    if (first.rank < 2 || second.rank < 2) refuse();
    const std::int64_t *a = first.sizes + first.rank - 2, *b = second.sizes + second.rank - 2;
    sizes.rows = a[0], sizes.depth = a[1], sizes.columns = b[transposed ? 0 : 1];
    if (sizes.depth != b[transposed ? 1 : 0]) refuse();
    rank = std::max(first.rank, second.rank);
    for (std::size_t axis = 0; axis + 2 < rank; ++axis) {
      const std::int64_t one = size_of(first, axis), other = size_of(second, axis);
      if (one != other && one != 1 && other != 1) refuse();
      y[axis] = one == 1 ? other : one;
      if (__builtin_mul_overflow(groups, y[axis], &groups)) refuse();
    }
    y[rank - 2] = sizes.rows, y[rank - 1] = sizes.columns;
  }

  // Finds the matrices of all groups. There is an output of as many: an empty one needs none.
  void number_matrices(const Description& first, const Description& second) {
    if (sizes.rows == 0 || sizes.columns == 0) return;
    sizes.firsts = count(first), sizes.seconds = count(second);
    if (sizes.seconds == 1 && sizes.firsts == groups) {
      // All rows are multiplied with the same matrix.
      sizes.rows *= groups, sizes.firsts = groups = std::min<std::int64_t>(groups, 1);
      sizes.first_of.assign(static_cast<std::size_t>(groups), 0);
      sizes.second_of = sizes.first_of;
      return;
    }
    number(first, sizes.first_of);
    number(second, sizes.second_of);
  }

 private:
  std::int64_t size_of(const Description& x, std::size_t axis) const {
    const std::size_t missing = rank - x.rank;
    return axis < missing ? 1 : x.sizes[axis - missing];
  }
  static std::int64_t count(const Description& x) {
    std::int64_t matrices = 1;
    for (std::size_t axis = 0; axis + 2 < x.rank; ++axis) matrices *= x.sizes[axis];
    return matrices;
  }
  // Finds the matrix of an input for each group.
  void number(const Description& x, std::vector<std::int64_t>& to) const {
    to.resize(static_cast<std::size_t>(groups));
    for (std::int64_t group = 0; group < groups; ++group) {
      std::int64_t rest = group, stride = 1, matrix = 0;
      for (std::size_t axis = rank - 2; axis-- > 0;) {
        const std::int64_t own = size_of(x, axis), place = rest % y[axis];
        rest /= y[axis];
        if (own != 1) matrix += place * stride;
        stride *= own;
      }
      to[static_cast<std::size_t>(group)] = matrix;
    }
  }
};

lowbit::DynamicMatMul::Operand read_operand(const NodeAttributes& attributes,
                                            const std::string& name) {
  const auto integer = [&](const char* what) {
    return attributes.require<std::int64_t>(name + what);
  };
  const auto number = [&](const char* what) { return attributes.require<float>(name + what); };
  lowbit::DynamicMatMul::Operand at;
  at.constants = {number("_steps"), number("_least"), number("_most"), integer("_asymmetric") != 0};
  at.lowest = integer("_lowest"), at.highest = integer("_highest");
  at.whole = integer("_whole") != 0;
  return at;
}

}  // namespace

DynamicMatMulKernel::DynamicMatMulKernel(const OrtApi& api, const OrtKernelInfo* info)
    : node_(api, info, dynamic_matmul_name) {
  located(node_.label(), [&] {
    const NodeAttributes attributes(api, info);
    transposed_ = attributes.require<std::int64_t>("transposed") != 0;
    product_ = std::make_unique<lowbit::DynamicMatMul>(read_operand(attributes, "first"),
                                                       read_operand(attributes, "second"),
                                                       transposed_, selected_level());
  });
}

void DynamicMatMulKernel::compute(OrtKernelContext* context) const {
  located(node_.label(), [&] { run(context); });
}

void DynamicMatMulKernel::run(OrtKernelContext* context) const {
  std::array<Description, 2> inputs;
  std::array<const float*, 2> from{};
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const OrtValue* value = nullptr;
    check(api(), api().KernelContext_GetInput(context, i, &value));
    if (value == nullptr)
      throw Error(Error::Kind::value, "input " + std::to_string(i) + " is missing");
    inputs[i].read(api(), value);
    from[i] = static_cast<const float*>(data_of(api(), value));
  }
  Shapes shapes(inputs[0], inputs[1], transposed_);
  OrtValue* value = nullptr;
  check(api(), api().KernelContext_GetOutput(context, 0, shapes.y.data(), shapes.rank, &value));
  if (value == nullptr) return;
  shapes.number_matrices(inputs[0], inputs[1]);
  product_->run(from[0], from[1], static_cast<float*>(data_of(api(), value)), shapes.sizes,
                SessionWorkers(api(), context));
}

DynamicMatMulOperator::DynamicMatMulOperator(const Host& host) : OrtCustomOp{} {
  connect_host(*this, host.minor);
  connect_kernel<DynamicMatMulKernel>(*this);
  GetName = [](const OrtCustomOp*) { return dynamic_matmul_name; };
  GetInputType = [](const OrtCustomOp*, std::size_t) { return OrtElementType::float32; };
  GetInputTypeCount = [](const OrtCustomOp*) { return std::size_t{2}; };
  GetOutputType = [](const OrtCustomOp*, std::size_t) { return OrtElementType::float32; };
  GetOutputTypeCount = [](const OrtCustomOp*) { return std::size_t{1}; };
  GetInputCharacteristic = [](const OrtCustomOp*, std::size_t) {
    return OrtCharacteristic::required;
  };
  GetOutputCharacteristic = [](const OrtCustomOp*, std::size_t) {
    return OrtCharacteristic::required;
  };
}

}  // namespace anybit::ort
