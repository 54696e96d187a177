// SPDX-License-Identifier: Apache-2.0
// The operators as Python functions over NumPy arrays. Names no operator.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <type_traits>

#include "../ops/operators.hpp"
#include "application.hpp"
#include "python_arrays.hpp"
#include "threads.hpp"
#include "xla_handler.hpp"

namespace anybit {
namespace {

// Below this a second thread costs more than it saves, and below that releasing the GIL does.
constexpr std::int64_t elements_per_thread = 128 * 1024;
constexpr std::int64_t elements_without_gil = 4096;

void read_attribute(nb::handle value, std::string_view name, bool& flag) {
  // NumPy's bools and integers are scalars of their own.
  if (!PyLong_Check(value.ptr()) && !nb::hasattr(value, "dtype"))
    throw Error(Error::Kind::type, std::string(name) + " must be a bool, got " + repr_of(value));
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) throw nb::python_error();
  flag = truth == 1;
}

void read_attribute(nb::handle value, std::string_view name, std::int64_t& number) {
  const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
  if (!index.is_valid()) throw nb::python_error();
  int overflow = 0;
  number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0)
    throw Error(Error::Kind::value, std::string(name) + " is out of range, got " + repr_of(index));
}

// The characters of a str, which the str owns; nothing for another object.
std::optional<std::string_view> characters(nb::handle object) {
  if (!PyUnicode_Check(object.ptr())) return std::nullopt;
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object.ptr(), &length);
  if (text == nullptr) throw nb::python_error();
  return std::string_view(text, static_cast<std::size_t>(length));
}

// A choice is given by its name, or as an object that has that name (a dtype, a type).
template <class Choice>
void read_attribute(nb::handle value, std::string_view name, Choice& choice) {
  nb::object text = nb::borrow(value);
  for (const char* attribute : {"__name__", "name"})
    if (!PyUnicode_Check(text.ptr())) text = nb::getattr(value, attribute, nb::borrow(value));
  const auto spelled = characters(text);
  if (!spelled)
    throw Error(Error::Kind::type, std::string(name) + " must be a string, got " + repr_of(value));
  parse(*spelled, choice);
}

// Releases the GIL for as long as it lives. A daemon thread that asks for the GIL after the
// interpreter has gone is ended by an exception that no destructor lets pass: it waits here for the
// end of the process instead.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

[[noreturn]] void fail(std::string_view op, const std::string& rest) {
  throw Error(Error::Kind::type, std::string(op) + "() " + rest);
}

// The arguments of one call, sorted by the operator's declaration.
template <class Op>
struct Arguments {
  std::array<nb::handle, Op::inputs.size()> inputs{};
  nb::handle out{};
  typename Op::Attributes attributes;

  Arguments(const nb::args& positional, const nb::kwargs& keywords) {
    if (positional.size() > inputs.size())
      fail(Op::name, "takes at most " + std::to_string(inputs.size()) +
                         " positional arguments, got " + std::to_string(positional.size()));
    for (std::size_t i = 0; i < positional.size(); ++i) inputs[i] = positional[i];
    for (const auto [key, value] : keywords) take(*characters(key), value);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].is_valid() && inputs[i].is_none() && Op::inputs[i].optional) inputs[i] = {};
      if (!inputs[i].is_valid() && !Op::inputs[i].optional)
        fail(Op::name, "misses the argument '" + std::string(Op::inputs[i].name) + "'");
    }
  }

  void take(std::string_view key, nb::handle value) {
    if (key == "out") {
      out = value.is_none() ? nb::handle() : value;
      return;
    }
    bool known = false;
    attributes.visit([&](std::string_view name, auto& attribute, auto... /*onnx_names*/) {
      if (name != key) return;
      read_attribute(value, name, attribute);
      known = true;
    });
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (Op::inputs[i].name != key) continue;
      if (inputs[i].is_valid()) fail(Op::name, "got '" + std::string(key) + "' twice");
      inputs[i] = value;
      known = true;
    }
    if (!known) fail(Op::name, "has no argument '" + std::string(key) + "'");
  }
};

// Borrows the array to write to, or makes one in x's memory order.
void take_out(Operand& out, nb::handle given, const Operand& x, ElementType type) {
  const NumPy& numpy = NumPy::get();
  if (!given.is_valid()) {
    const bool same = type == x.tensor().type;
    return out.borrow(same ? numpy.empty_like(x.object())
                           : numpy.empty_like(x.object(), std::string(name_of(type))),
                      "out", true);
  }
  if (!nb::isinstance(given, numpy.ndarray))
    throw Error(Error::Kind::type, "out must be a NumPy array, got " + repr_of(given.type()));
  out.borrow(nb::borrow(given), "out", true);
  const Tensor& wanted = x.tensor();
  const Tensor& got = out.tensor();
  if (!got.given || got.type != type || got.rank != wanted.rank ||
      !std::equal(got.shape, got.shape + got.rank, wanted.shape))
    throw Error(Error::Kind::value, "out must have shape " +
                                        text_of(nb::object(x.object().attr("shape"))) +
                                        " and dtype " + std::string(name_of(type)) +
                                        ", got shape " + text_of(nb::object(given.attr("shape"))) +
                                        " and dtype " + text_of(nb::object(given.attr("dtype"))));
}

template <class Op>
nb::object call(const nb::args& positional, const nb::kwargs& keywords) {
  Arguments<Op> arguments(positional, keywords);
  const OperatorInfo& op = operator_info<Op, Operators>();
  std::array<Operand, Op::inputs.size()> operands;
  Operand& x = operands[0];
  const nb::handle given = arguments.inputs[0];
  x.borrow(is_ndarray(given) ? nb::borrow(given) : NumPy::get().asarray(given), op.inputs[0].name,
           false);
  const ElementType type = result_type(op, &arguments.attributes, x.tensor().type);
  for (std::size_t i = 1; i < operands.size(); ++i)
    if (arguments.inputs[i].is_valid()) operands[i].read(arguments.inputs[i], op.inputs[i].name);

  Operand out;
  take_out(out, arguments.out, x, type);
  if (arguments.out.is_valid())
    for (std::size_t i = 0; i < operands.size(); ++i)
      // Writing the result must not change what is still to be read.
      if (operands[i].touches(out) && !(i == 0 && x.is_same_memory(out)))
        operands[i].borrow(NumPy::get().copy(operands[i].object()), op.inputs[i].name, false);

  std::array<Tensor, Op::inputs.size()> tensors;
  for (std::size_t i = 0; i < operands.size(); ++i) tensors[i] = operands[i].tensor();
  const Application application(op, &arguments.attributes, tensors, out.tensor());
  if (application.size() < elements_without_gil) {
    application.run(0, application.size());
  } else {
    const WithoutGil unlocked;
    parallel_for(application.size(), elements_per_thread,
                 [&](std::int64_t first, std::int64_t last) { application.run(first, last); });
  }
  return out.object();
}

// What the C++ side believes of an operator, for the test that compares it with the Python side.
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
    module.def(Op::name.data(), &call<Op>);
    descriptions[Op::name.data()] = describe<Op>();
  });
  module.attr("descriptions") = descriptions;
  nb::dict handlers;
  xla::for_each_handler([&](std::string_view name, void* handler) {
    handlers[nb::str(name.data(), name.size())] = nb::capsule(handler);
  });
  module.attr("xla_handlers") = handlers;
  module.def("num_threads", &num_threads);
  module.def("set_num_threads", &set_num_threads);
  module.def("isa", [] { return std::string(selected_kernels()); });
  module.def("set_isa", [](const std::string& name) { select_kernels(name); });
  // What is wrong with the environment fails the import, not some later call.
  selected_kernels();
  num_threads();
  NumPy::get();
}
