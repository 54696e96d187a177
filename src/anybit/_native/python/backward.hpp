// SPDX-License-Identifier: Apache-2.0
// Gradients of operators as Python functions of NumPy arrays.
#pragma once

#include "_native/engine/backward.hpp"
#include "_native/threads/pool.hpp"
#include "arguments.hpp"
#include "ops/operators.hpp"

namespace anybit {

// Requested inputs by index, in the requested order.
template <class Op>
std::vector<std::size_t> requested_inputs(const Arguments<Op>& arguments) {
  constexpr auto differentiable = differentiable_inputs<Op>();
  if (!arguments.requested.is_valid()) fail(Op::name, "misses the argument 'requested'");
  std::vector<std::size_t> requested;
  const nb::object items = object_from([&] {
    return PySequence_Fast(arguments.requested.ptr(), "requested must be names of inputs");
  });
  for (Py_ssize_t i = 0; i < PySequence_Size(items.ptr()); ++i) {
    const nb::object item = object_from([&] { return PySequence_GetItem(items.ptr(), i); });
    const auto name = characters(item);
    std::size_t index = Op::inputs.size();
    for (const int place : differentiable)
      if (name && Op::inputs[static_cast<std::size_t>(place)].name == *name)
        index = static_cast<std::size_t>(place);
    if (index == Op::inputs.size()) {
      std::string names;
      for (const std::string_view name : Op::differentiable)
        names.append(names.empty() ? "" : ", ").append(name);
      throw Error(Error::Kind::value,
                  "requested must be among " + names + ", got " + repr_of(item));
    }
    if (std::find(requested.begin(), requested.end(), index) != requested.end())
      throw Error(Error::Kind::value, "requested has " + repr_of(item) + " twice");
    if (!arguments.inputs[index].is_valid())
      throw Error(Error::Kind::value, "requested has " + repr_of(item) + ", which is not given");
    requested.push_back(index);
  }
  return requested;
}

// Makes the NumPy array for a parameter's gradient, also for parameters of another library: of its
// shape, and of its type if that is floating.
inline void make_gradient(Operand& gradient, const Operand& parameter, ElementType computed) {
  const NumPy& numpy = NumPy::get();
  const bool number = !parameter.object().is_valid();
  const nb::object shape = number ? object_from([] { return PyTuple_New(0); })
                                  : attribute_of(parameter.object(), "shape");
  const bool floating = !parameter.tensor().literal && is_floating(parameter.tensor().type);
  const nb::object type = python_text(name_of(floating ? parameter.tensor().type : computed));
  gradient.borrow(called(numpy.empty, shape, type), "gradient", true);
}

// Objects of a call, released at its end.
template <class Op>
struct BackwardOperands {
  std::array<Operand, Op::inputs.size()> inputs;
  Operand upstream;
  std::array<Operand, Op::inputs.size()> gradients;
};

template <class Op>
nb::object call_backward(const Call& call) {
  const Arguments<Op> arguments(call, true);
  const auto requested = requested_inputs(arguments);
  const OperatorInfo& op = operator_info<Op, Operators>();
  BackwardOperands<Op> all;
  const ElementType type = read_inputs(arguments, op, all.inputs);
  const Operand& x = all.inputs[0];
  const nb::handle upstream = arguments.gradient;
  if (!upstream.is_valid()) fail(Op::name, "misses the argument 'gradient'");
  take_array(all.upstream, upstream, "gradient", arguments.exchange);

  typename Backward::Gradients gradients;
  const ElementType computed =
      type == ElementType::float64 ? ElementType::float64 : ElementType::float32;
  for (const std::size_t place : requested) {
    if (place == 0) take_out(all.gradients[0], arguments.out, x, type, arguments.exchange);
    else make_gradient(all.gradients[place], all.inputs[place], computed);
    (place == 0 ? gradients.of_x : gradients.of_inputs[place]) = all.gradients[place].tensor();
  }
  const Operand& out = all.gradients[0];
  if (arguments.out.is_valid() && !out.tensor().given)
    throw Error(Error::Kind::value, "out is for the gradient of " +
                                        std::string(Op::inputs[0].name) +
                                        ", which is not requested");
  if (arguments.out.is_valid()) {
    for (std::size_t i = 0; i < all.inputs.size(); ++i)
      keep_readable(all.inputs[i], out, op.inputs[i].name, i == 0);
    keep_readable(all.upstream, out, "gradient", true);
  }
  gradients.upstream = all.upstream.tensor();

  std::array<Tensor, Op::inputs.size()> tensors;
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i] = all.inputs[i].tensor();
  Backward backward(op, &arguments.attributes, tensors, gradients);
  {
    const WithoutGil unlocked(backward.size());
    backward.run(pool());
  }
  const nb::object results =
      object_from([&] { return PyList_New(static_cast<Py_ssize_t>(requested.size())); });
  for (std::size_t i = 0; i < requested.size(); ++i)
    PyList_SetItem(results.ptr(), static_cast<Py_ssize_t>(i),
                   nb::object(all.gradients[requested[i]].object()).release().ptr());
  return results;
}

}  // namespace anybit
