// SPDX-License-Identifier: Apache-2.0
// Arguments of a Python call, matched to the declaration of an operator.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "_native/engine/operator_info.hpp"
#include "arrays.hpp"

namespace anybit {

inline bool has_attribute(nb::handle object, const char* name) {
  return in_python([&] { return PyObject_HasAttrString(object.ptr(), name); }) == 1;
}

inline void read_attribute(nb::handle value, std::string_view name, bool& flag) {
  // NumPy's bools and integers are types of their own.
  if (!PyLong_Check(value.ptr()) && !has_attribute(value, "dtype"))
    throw Error(Error::Kind::type, std::string(name) + " must be a bool, got " + repr_of(value));
  flag = is_true(value);
}

inline void read_attribute(nb::handle value, std::string_view name, std::int64_t& number) {
  const nb::object index = object_from([&] { return PyNumber_Index(value.ptr()); });
  int overflow = 0;
  number = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
  if (overflow != 0)
    throw Error(Error::Kind::value, std::string(name) + " is out of range, got " + repr_of(index));
}

// Characters of a str, which it owns; nothing for other objects.
inline std::optional<std::string_view> characters(nb::handle object) {
  if (!PyUnicode_Check(object.ptr())) return std::nullopt;
  Py_ssize_t length = 0;
  const char* text = PyUnicode_AsUTF8AndSize(object.ptr(), &length);
  if (text == nullptr) throw PythonError();
  return std::string_view(text, static_cast<std::size_t>(length));
}

// A choice is passed by name, or as an object that has the name (a dtype, a type).
template <class Choice>
void read_attribute(nb::handle value, std::string_view name, Choice& choice) {
  nb::object text = nb::borrow(value);
  for (const char* attribute : {"__name__", "name"})
    if (!PyUnicode_Check(text.ptr()) && has_attribute(value, attribute))
      text = attribute_of(value, attribute);
  const auto spelled = characters(text);
  if (!spelled)
    throw Error(Error::Kind::type, std::string(name) + " must be a string, got " + repr_of(value));
  parse(*spelled, choice);
}

[[noreturn]] inline void fail(std::string_view op, const std::string& rest) {
  throw Error(Error::Kind::type, std::string(op) + "() " + rest);
}

// Arguments as passed by the interpreter.
struct Call {
  PyObject* const* values;
  std::size_t positional;
  PyObject* names;                 // a tuple, or null
  PyObject* const* named;          // their values
  PyObject* attributes = nullptr;  // further keywords, a dict, or null

  std::size_t keywords() const {
    return names == nullptr ? 0 : static_cast<std::size_t>(PyTuple_Size(names));
  }
};

// Makes a call from (positional, attributes, names, *values): a tuple, a dict, and further
// keywords.
inline Call spread(std::span<PyObject* const> arguments, std::span<PyObject*> positional) {
  const bool fits = arguments.size() >= 3 && PyTuple_Check(arguments[0]) &&
                    PyDict_Check(arguments[1]) && PyTuple_Check(arguments[2]) &&
                    PyTuple_Size(arguments[2]) == static_cast<Py_ssize_t>(arguments.size() - 3) &&
                    PyTuple_Size(arguments[0]) <= static_cast<Py_ssize_t>(positional.size());
  if (!fits) throw Error(Error::Kind::type, "takes (positional, attributes, names, *values)");
  const auto count = static_cast<std::size_t>(PyTuple_Size(arguments[0]));
  for (std::size_t i = 0; i < count; ++i)
    positional[i] = PyTuple_GetItem(arguments[0], static_cast<Py_ssize_t>(i));
  return {positional.data(), count, arguments[2], arguments.data() + 3, arguments[1]};
}

// Arguments of a call, in the order of the operator's declaration.
template <class Op>
struct Arguments {
  std::array<nb::handle, Op::inputs.size()> inputs{};
  nb::handle out{};
  nb::handle requested{};  // for backward functions, whose first argument is the gradient
  nb::handle gradient{};
  const dlpack::Exchange* exchange = nullptr;  // for tensors of another library
  typename Op::Attributes attributes;

  explicit Arguments(const Call& call, bool backward = false) : backward_(backward) {
    const std::size_t before = backward ? 1 : 0;
    if (call.positional > inputs.size() + before)
      fail(Op::name, "takes at most " + std::to_string(inputs.size() + before) +
                         " positional arguments, got " + std::to_string(call.positional));
    if (backward && call.positional > 0) gradient = call.values[0];
    for (std::size_t i = before; i < call.positional; ++i) inputs[i - before] = call.values[i];
    for (std::size_t i = 0; i < call.keywords(); ++i)
      take(PyTuple_GetItem(call.names, static_cast<Py_ssize_t>(i)), call.named[i]);
    PyObject *name = nullptr, *value = nullptr;
    Py_ssize_t next = 0;
    while (call.attributes != nullptr && PyDict_Next(call.attributes, &next, &name, &value))
      take(name, value);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].is_valid() && inputs[i].is_none() && Op::inputs[i].optional) inputs[i] = {};
      if (!inputs[i].is_valid() && !Op::inputs[i].optional)
        fail(Op::name, "misses the argument '" + std::string(Op::inputs[i].name) + "'");
    }
  }

  void take(nb::handle name, nb::handle value) {
    const auto key = characters(name);
    if (!key) fail(Op::name, "takes names that are strings, got " + repr_of(name));
    take(*key, value);
  }

  void take(std::string_view key, nb::handle value) {
    if (key == "out") {
      out = value.is_none() ? nb::handle() : value;
      return;
    }
    if (key == "exchange" && PyCapsule_CheckExact(value.ptr())) {
      exchange = &dlpack::exchange_of(value);
      return;
    }
    if (backward_ && key == "requested") {
      requested = value;
      return;
    }
    bool matched = false;
    attributes.visit([&](std::string_view name, auto& attribute, auto... /*onnx_names*/) {
      if (name != key) return;
      read_attribute(value, name, attribute);
      matched = true;
    });
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (Op::inputs[i].name != key) continue;
      if (inputs[i].is_valid()) fail(Op::name, "got '" + std::string(key) + "' twice");
      inputs[i] = value;
      matched = true;
    }
    if (!matched) fail(Op::name, "has no argument '" + std::string(key) + "'");
  }

 private:
  bool backward_;
};

// Borrows an array, or converts an object to one.
inline void take_array(Operand& operand, nb::handle object, std::string_view name,
                       const dlpack::Exchange* exchange) {
  if (exchange != nullptr) return operand.borrow(object, name, *exchange);
  operand.borrow(is_ndarray(object) ? nb::borrow(object) : called(NumPy::get().asarray, object),
                 name, false);
}

// Borrows the output array, or makes one in x's memory order.
inline void take_out(Operand& out, nb::handle object, const Operand& x, ElementType type,
                     const dlpack::Exchange* exchange) {
  const NumPy& numpy = NumPy::get();
  if (!object.is_valid()) {
    const bool same = type == x.tensor().type;
    return out.borrow(same ? called(numpy.empty_like, x.object())
                           : called(numpy.empty_like, x.object(), python_text(name_of(type))),
                      "out", true);
  }
  const bool array =
      PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(numpy.ndarray.ptr()));
  if (exchange != nullptr) out.borrow(object, "out", *exchange);
  else if (array) out.borrow(nb::borrow(object), "out", true);
  else throw Error(Error::Kind::type, "out must be a NumPy array, got " + repr_of(object.type()));
  const Tensor& like = x.tensor();
  const Tensor& got = out.tensor();
  if (!got.given || got.type != type || got.rank != like.rank ||
      !std::equal(got.shape, got.shape + got.rank, like.shape))
    throw Error(Error::Kind::value, "out must have shape " +
                                        text_of(attribute_of(x.object(), "shape")) + " and dtype " +
                                        std::string(name_of(type)) + ", got shape " +
                                        text_of(attribute_of(object, "shape")) + " and dtype " +
                                        text_of(attribute_of(object, "dtype")));
}

// Reads the arguments as arrays, and returns the result type.
template <class Op>
ElementType read_inputs(const Arguments<Op>& arguments, const OperatorInfo& op,
                        std::array<Operand, Op::inputs.size()>& operands) {
  const dlpack::Exchange* const exchange = arguments.exchange;
  take_array(operands[0], arguments.inputs[0], op.inputs[0].name, exchange);
  const ElementType type = result_type(op, &arguments.attributes, operands[0].tensor().type);
  for (std::size_t i = 1; i < operands.size(); ++i)
    if (arguments.inputs[i].is_valid())
      operands[i].read(arguments.inputs[i], op.inputs[i].name, exchange);
  return type;
}

// Copies an input that overlaps `out`: writing the result must not change elements that are read
// later. Exactly the same elements may be both.
inline void keep_readable(Operand& operand, const Operand& out, std::string_view name,
                          bool elementwise) {
  if (operand.touches(out) && !(elementwise && operand.is_same_memory(out)))
    operand.borrow(called(NumPy::get().copy, operand.object()), name, false);
}

}  // namespace anybit
