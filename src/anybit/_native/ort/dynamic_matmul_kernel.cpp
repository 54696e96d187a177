// SPDX-License-Identifier: Apache-2.0
#include "dynamic_matmul_kernel.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "attributes.hpp"
#include "workers.hpp"

namespace anybit::ort {

namespace {

using Matrices = lowbit::DynamicMatMul::Matrices;
using Sizes = lowbit::DynamicMatMul::Sizes;

constexpr const char* dynamic_matmul_name = "DynamicMatMul";

// Returns the product of two sizes, or the largest number: sizes of an empty array may exceed it.
std::int64_t multiply(std::int64_t one, std::int64_t other) {
  std::int64_t product = 0;
  const bool exceeds = __builtin_mul_overflow(one, other, &product);
  return exceeds ? std::numeric_limits<std::int64_t>::max() : product;
}

// An array whose axes are read in another order: axis i is axis `axes[i]` of the array.
struct View {
  std::size_t rank = 0;
  std::array<std::int64_t, max_rank> sizes{}, strides{};
  bool is_moved = false;

  // Throws Error for axes that are not a permutation which leaves the last axis in place.
  View(const std::int64_t* of_array, std::size_t rank_, const std::string& axes) : rank(rank_) {
    std::array<std::int64_t, max_rank> all{};
    std::int64_t stride = 1;
    for (std::size_t axis = rank; axis-- > 0; stride = multiply(stride, of_array[axis]))
      all[axis] = stride;
    std::array<bool, max_rank> seen{};
    const auto axis_at = [&](std::size_t i) {
      return axes.empty() ? i : static_cast<std::size_t>(axes[i]) - std::size_t{'0'};
    };
    bool fits = axes.empty() || axes.size() == rank;
    for (std::size_t i = 0; fits && i < rank; ++i) {
      const std::size_t axis = axis_at(i);
      fits = axis < rank && !seen[axis] && (axis == i || i + 1 < rank);
      if (!fits) break;
      seen[axis] = true;
      sizes[i] = of_array[axis], strides[i] = all[axis];
      is_moved = is_moved || axis != i;
    }
    if (!fits)
      throw Error(Error::Kind::value,
                  "axes must be a permutation of " + std::to_string(rank) +
                      " axes with the last one in place, one digit each, got '" + axes + "'");
  }

  // Size of an axis of an array with more axes, which are in front.
  std::int64_t size_of(std::size_t axis, std::size_t of) const {
    const std::size_t missing = of - rank;
    return axis < missing ? 1 : sizes[axis - missing];
  }
  std::int64_t count(std::size_t axes) const {
    std::int64_t numbers = 1;
    for (std::size_t axis = 0; axis < axes; ++axis) numbers = multiply(numbers, sizes[axis]);
    return numbers;
  }
  std::string shape() const {
    std::string text = "(";
    for (std::size_t axis = 0; axis < rank; ++axis)
      text += (axis > 0 ? ", " : "") + std::to_string(sizes[axis]);
    return text + ")";
  }
};

// Axes of matrices, and the axes before these, which are broadcast.
struct Shapes {
  Sizes sizes;
  std::size_t rank = 0;
  std::array<std::int64_t, max_rank> y{};
  std::int64_t groups = 1;

  // Throws Error for shapes that cannot be multiplied.
  Shapes(const View& first, const View& second, bool transposed) {
    const auto refuse = [&] {
      throw Error(Error::Kind::value, "inputs of shapes " + first.shape() + " and " +
                                          second.shape() + " cannot be multiplied" +
                                          (transposed ? ", the second transposed" : ""));
    };
    if (first.rank < 2 || second.rank < 2) refuse();
    const std::int64_t *a = first.sizes.data() + first.rank - 2,
                       *b = second.sizes.data() + second.rank - 2;
    sizes.rows = a[0], sizes.depth = a[1], sizes.columns = b[transposed ? 0 : 1];
    if (sizes.depth != b[transposed ? 1 : 0]) refuse();
    rank = std::max(first.rank, second.rank);
    for (std::size_t axis = 0; axis + 2 < rank; ++axis) {
      const std::int64_t one = first.size_of(axis, rank), other = second.size_of(axis, rank);
      if (one != other && one != 1 && other != 1) refuse();
      y[axis] = one == 1 ? other : one;
      if (__builtin_mul_overflow(groups, y[axis], &groups)) refuse();
    }
    y[rank - 2] = sizes.rows, y[rank - 1] = sizes.columns;
  }

  // Finds the matrices of all groups. There is an output of as many: an empty one needs none.
  void find_matrices(const View& first, const View& second, const View& result) {
    if (sizes.rows == 0 || sizes.columns == 0) return;
    const bool is_moved = first.is_moved || result.is_moved;
    if (!is_moved && second.count(second.rank - 2) == 1 && first.count(first.rank - 2) == groups) {
      // All rows are multiplied with the same matrix.
      sizes.rows *= groups, groups = std::min<std::int64_t>(groups, 1);
      for (Matrices* const matrices : {&sizes.first, &sizes.second, &sizes.y})
        matrices->of_group.assign(static_cast<std::size_t>(groups), 0);
    } else {
      find_starts(first, sizes.first), find_starts(second, sizes.second);
      find_starts(result, sizes.y);
    }
    for (const auto& [view, matrices] :
         {std::pair(&first, &sizes.first), {&second, &sizes.second}, {&result, &sizes.y}})
      matrices->numbers = view->count(view->rank), matrices->row = view->strides[view->rank - 2];
  }

 private:
  // Finds the start of the matrix of each group.
  void find_starts(const View& x, Matrices& matrices) const {
    matrices.of_group.resize(static_cast<std::size_t>(groups));
    const std::size_t missing = rank - x.rank;
    for (std::int64_t group = 0; group < groups; ++group) {
      std::int64_t rest = group, start = 0;
      for (std::size_t axis = rank - 2; axis-- > 0;) {
        const std::int64_t place = rest % y[axis];
        rest /= y[axis];
        if (x.size_of(axis, rank) != 1) start += place * x.strides[axis - missing];
      }
      matrices.of_group[static_cast<std::size_t>(group)] = start;
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

constexpr std::array<std::string_view, 3> axes_names = {"first_axes", "second_axes", "result_axes"};

// Returns the order that undoes an order of axes, which is valid.
std::string inverse_of(const std::string& axes) {
  std::string result = axes;
  for (std::size_t i = 0; i < axes.size(); ++i)
    result[static_cast<std::size_t>(axes[i] - '0')] = static_cast<char>('0' + i);
  return result;
}

}  // namespace

DynamicMatMulKernel::DynamicMatMulKernel(const OrtApi& api, const OrtKernelInfo* info)
    : node_(api, info, dynamic_matmul_name) {
  located(node_.label(), [&] {
    const NodeAttributes attributes(api, info);
    transposed_ = attributes.require<std::int64_t>("transposed") != 0;
    float factor = 1;
    attributes.read("factor", factor);
    for (std::size_t i = 0; i < axes_.size(); ++i)
      attributes.read(std::string(axes_names[i]), axes_[i]);
    product_ = std::make_unique<lowbit::DynamicMatMul>(read_operand(attributes, "first"),
                                                       read_operand(attributes, "second"),
                                                       transposed_, factor, selected_level());
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
    if (inputs[i].type != OrtElementType::float32)
      throw Error(Error::Kind::type, "inputs must be float32");
    from[i] = static_cast<const float*>(data_of(api(), value));
  }
  const View first(inputs[0].sizes, inputs[0].rank, axes_[0]),
      second(inputs[1].sizes, inputs[1].rank, axes_[1]);
  Shapes shapes(first, second, transposed_);
  // The axes of the output are those of the product in another order.
  const View moved(shapes.y.data(), shapes.rank, axes_[2]);
  OrtValue* value = nullptr;
  check(api(), api().KernelContext_GetOutput(context, 0, moved.sizes.data(), shapes.rank, &value));
  if (value == nullptr) return;
  const View result(moved.sizes.data(), shapes.rank, inverse_of(axes_[2]));
  shapes.find_matrices(first, second, result);
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
