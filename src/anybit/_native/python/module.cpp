// SPDX-License-Identifier: Apache-2.0
// Operators as Python functions of NumPy arrays. Independent of the set of operators.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <type_traits>

#include "_native/engine/any_application.hpp"
#include "_native/threads/pool.hpp"
#include "_native/threads/processors.hpp"
#include "_native/xla/handler.hpp"
#include "arguments.hpp"
#include "backward.hpp"
#include "matrices.hpp"
#include "network_object.hpp"
#include "ops/operators.hpp"
#include "plain.hpp"
#include "statistics.hpp"

namespace anybit {
namespace {

template <class Op>
nb::object call(const Call& call) {
  const Arguments<Op> arguments(call);
  const OperatorInfo& op = operator_info<Op, Operators>();
  std::array<Operand, Op::inputs.size()> operands;
  const ElementType type = read_inputs(arguments, op, operands);
  Operand out;
  take_out(out, arguments.out, operands[0], type, arguments.exchange);
  if (arguments.out.is_valid())
    for (std::size_t i = 0; i < operands.size(); ++i)
      keep_readable(operands[i], out, op.inputs[i].name, i == 0);

  std::array<Tensor, Op::inputs.size()> tensors;
  for (std::size_t i = 0; i < operands.size(); ++i) tensors[i] = operands[i].tensor();
  const AnyApplication application(op, &arguments.attributes, tensors, out.tensor());
  {
    const WithoutGil unlocked(application.size());
    application.run(pool());
  }
  return out.object();
}

// A function of the module, without nanobind, which would first make a tuple and a dict of the
// arguments.
template <nb::object (*work)(const Call& call)>
void add_function(const nb::module_& module, std::string_view name) {
  constexpr auto entry = [](PyObject*, PyObject* const* values, Py_ssize_t count,
                            PyObject* names) -> PyObject* {
    return raising([&] {
      return work({values, static_cast<std::size_t>(count), names, values + count}).release().ptr();
    });
  };
  static const std::string kept(name);
  static PyMethodDef definition{kept.c_str(),
                                reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(+entry)),
                                METH_FASTCALL | METH_KEYWORDS, nullptr};
  const nb::object module_name = attribute_of(module, "__name__");
  module.attr(kept.c_str()) =
      object_from([&] { return PyCFunction_NewEx(&definition, nullptr, module_name.ptr()); });
}

// The same for callers that have a tuple and a dict of arguments: (positional, attributes, names,
// *values), where values are those of further keywords.
template <nb::object (*work)(const Call& call)>
void add_spread(const nb::module_& module, std::string_view name) {
  constexpr auto entry = [](PyObject*, PyObject* const* arguments, Py_ssize_t count) -> PyObject* {
    return raising([&] {
      std::array<PyObject*, max_inputs + 1> positional;
      return work(spread({arguments, static_cast<std::size_t>(count)}, positional)).release().ptr();
    });
  };
  static const std::string kept = std::string(name) + "_spread";
  static PyMethodDef definition{kept.c_str(),
                                reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(+entry)),
                                METH_FASTCALL, nullptr};
  module.attr(kept.c_str()) =
      object_from([&] { return PyCFunction_NewEx(&definition, nullptr, nullptr); });
}

// Declaration of an operator in C++, for the test that compares it with Python's.
template <class Op>
nb::dict describe() {
  nb::list inputs;
  for (const Input& input : Op::inputs)
    inputs.append(nb::make_tuple(nb::str(input.name.data(), input.name.size()), input.optional,
                                 std::string(input.domain.description), input.domain.integer,
                                 input.domain.minimum, input.domain.maximum));
  nb::dict attributes;
  typename Op::Attributes defaults;
  defaults.visit([&](std::string_view name, auto& value, auto... /*onnx_names*/) {
    using Value = std::remove_reference_t<decltype(value)>;
    const nb::str key(name.data(), name.size());
    if constexpr (std::is_enum_v<Value>) attributes[key] = std::string(name_of(value));
    else attributes[key] = value;
  });
  nb::dict description;
  description["inputs"] = inputs;
  description["attributes"] = attributes;
  nb::list differentiable;
  if constexpr (requires { Op::differentiable; })
    for (const std::string_view name : Op::differentiable)
      differentiable.append(nb::str(name.data(), name.size()));
  description["differentiable"] = nb::tuple(differentiable);
  return description;
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    PyErr_SetString(error.kind == Error::Kind::type ? PyExc_TypeError : PyExc_ValueError,
                    error.what());
  }
}

}  // namespace
}  // namespace anybit

NB_MODULE(_core, module) {
  using namespace anybit;
  nb::register_exception_translator(translate);
  nb::dict descriptions;
  Operators::for_each([&]<class Op>() {
    add_function<&call<Op>>(module, Op::name);
    add_spread<&call<Op>>(module, Op::name);
    if constexpr (!BlockReduction<Op>)
      add_function<&round_in_turn<Op>>(module, std::string(Op::name) + "_in_turn");
    if constexpr (requires { Op::differentiable; }) {
      add_function<&call_backward<Op>>(module, std::string(Op::name) + "_backward");
      add_spread<&call_backward<Op>>(module, std::string(Op::name) + "_backward");
    }
    descriptions[Op::name.data()] = describe<Op>();
  });
  module.attr("descriptions") = descriptions;
  nb::dict handlers;
  xla::for_each_handler([&](const std::string& name, void* handler) {
    handlers[name.c_str()] = nb::capsule(handler);
  });
  module.attr("xla_handlers") = handlers;
  add_networks(module);
  add_statistics(module);
  add_function<&add_product_of>(module, "add_product");
  module.def("plain_tensors", &plain_tensors);
  module.def("num_threads", &num_threads);
  module.def("set_num_threads", &set_num_threads);
  module.def("limit_threads", &limit_threads);
  module.def("may_spin", &may_spin);
  module.def("read_cpu_quota", &read_cpu_quota);
  module.def("find_processors", [](std::optional<double> quota) {
    const Processors processors = find_processors(quota);
    return std::pair(processors.count, processors.whole);
  });
  module.def("isa", [] { return std::string(name_of(selected_level())); });
  module.def("isa_for", [](std::int64_t elements) {
    return std::string(name_of(level_for({nullptr, ElementType::float32, 1, &elements})));
  });
  module.def("set_isa", [](const std::string& name) { select_level(name); });
  // Bad environment variables fail the import instead of a later call.
  selected_level();
  num_threads();
  NumPy::get();
}
