// SPDX-License-Identifier: Apache-2.0
// Native check of torch/dispatch/direct.py whether tensors of PyTorch are plain. It calls PyTorch's
// own functions for the dispatch keys of tensors and of the thread; in Python this takes longer
// than a kernel on a small tensor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "interpreter.hpp"

namespace anybit {

class PlainTensors {
 public:
  // All functions are PyTorch's; `as_bits` returns the keys of a set as bits. `own` has the allowed
  // keys of plain tensors per device, `watched` the functions that must return false, and `level`
  // is an attribute of `modes` that must be negative.
  PlainTensors(const nb::tuple& types, nb::object keys_of, nb::object keys_of_thread,
               nb::object as_bits, const std::vector<std::uint64_t>& own, const nb::tuple& watched,
               nb::object modes, nb::object level)
      : keys_of_(std::move(keys_of)),
        keys_of_thread_(std::move(keys_of_thread)),
        as_bits_(std::move(as_bits)),
        own_(own),
        modes_(std::move(modes)),
        level_(std::move(level)) {
    for (const nb::handle type : types) types_.push_back(nb::borrow(type));
    for (const nb::handle function : watched) watched_.push_back(nb::borrow(function));
  }

  // Returns the tensors among the inputs, a tuple of tensors and numbers that begins with a tensor.
  // Returns None for other inputs, or if anything but the kernels of one device might intercept a
  // call with them.
  nb::object among(nb::handle inputs) const {
    if (!PyTuple_CheckExact(inputs.ptr())) return nb::none();
    const Py_ssize_t count = PyTuple_Size(inputs.ptr());
    Py_ssize_t tensor_count = 0;
    std::uint64_t keys = bits(called(keys_of_thread_));
    for (Py_ssize_t i = 0; i < count; ++i) {
      const nb::handle input = PyTuple_GetItem(inputs.ptr(), i);
      if (i > 0 && is_number(input)) continue;
      if (!is_tensor(input)) return nb::none();
      keys |= bits(called(keys_of_, input));
      ++tensor_count;
    }
    const auto fits = [&](std::uint64_t own) { return (keys & ~own) == 0; };
    if (std::none_of(own_.begin(), own_.end(), fits)) return nb::none();
    for (const nb::object& function : watched_)
      if (is_true(called(function))) return nb::none();
    if (is_inside_a_level()) return nb::none();
    if (tensor_count == count) return nb::borrow(inputs);
    return tensors(inputs, tensor_count);
  }

 private:
  static bool is_number(nb::handle input) {
    PyObject* const object = input.ptr();
    return PyFloat_CheckExact(object) || PyLong_CheckExact(object) || PyBool_Check(object) ||
           object == Py_None;
  }

  bool is_tensor(nb::handle input) const {
    const auto* const type = reinterpret_cast<PyObject*>(Py_TYPE(input.ptr()));
    return std::any_of(types_.begin(), types_.end(),
                       [&](const nb::object& plain_type) { return plain_type.ptr() == type; });
  }

  // All bits for an object without such bits, which is never plain.
  std::uint64_t bits(const nb::object& keys) const {
    const nb::object number = called(as_bits_, keys);
    const unsigned long long bits = PyLong_AsUnsignedLongLong(number.ptr());
    if (bits == ~0ull) PyErr_Clear();
    return bits;
  }

  bool is_inside_a_level() const {
    const nb::object level =
        object_from([this] { return PyObject_GetAttr(modes_.ptr(), level_.ptr()); });
    const long number = PyLong_AsLong(level.ptr());
    if (number == -1 && PyErr_Occurred() != nullptr) throw PythonError();
    return number >= 0;
  }

  static nb::object tensors(nb::handle inputs, Py_ssize_t count) {
    const nb::object all = object_from([&] { return PyTuple_New(count); });
    Py_ssize_t place = 0;
    for (Py_ssize_t i = 0; i < PyTuple_Size(inputs.ptr()); ++i) {
      const nb::handle input = PyTuple_GetItem(inputs.ptr(), i);
      if (!is_number(input)) PyTuple_SetItem(all.ptr(), place++, nb::borrow(input).release().ptr());
    }
    return all;
  }

  std::vector<nb::object> types_, watched_;
  nb::object keys_of_, keys_of_thread_, as_bits_;
  std::vector<std::uint64_t> own_;
  nb::object modes_, level_;
};

// `PlainTensors::among` as a Python function that owns the functions it calls.
inline nb::object plain_tensors(const nb::tuple& types, nb::object keys_of,
                                nb::object keys_of_thread, nb::object as_bits,
                                const std::vector<std::uint64_t>& own, const nb::tuple& watched,
                                nb::object modes, nb::object level) {
  constexpr auto entry = [](PyObject* self, PyObject* inputs) -> PyObject* {
    return raising([&] {
      const void* const kept = PyCapsule_GetPointer(self, nullptr);
      if (kept == nullptr) throw PythonError();
      return static_cast<const PlainTensors*>(kept)->among(inputs).release().ptr();
    });
  };
  static PyMethodDef definition{"plain_tensors", +entry, METH_O, nullptr};
  auto* const kept =
      new PlainTensors(types, std::move(keys_of), std::move(keys_of_thread), std::move(as_bits),
                       own, watched, std::move(modes), std::move(level));
  const nb::capsule self(
      kept, [](void* pointer) noexcept { delete static_cast<PlainTensors*>(pointer); });
  return object_from([&] { return PyCFunction_NewEx(&definition, self.ptr(), nullptr); });
}

}  // namespace anybit
