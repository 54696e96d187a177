// SPDX-License-Identifier: Apache-2.0
// NumPy's C API, as far as small networks need it: it is faster than the buffer protocol. It is
// stable within an ABI, so that no headers are needed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "arrays.hpp"

namespace anybit {

// Leading members of an ndarray.
struct ArrayObject {
  PyObject head;
  void* data;
  int rank;
  Py_ssize_t* sizes;
  Py_ssize_t* strides;
  PyObject* base;
  PyObject* dtype;
  int flags;
};
static_assert(offsetof(ArrayObject, flags) == sizeof(PyObject) + 48);

class NDArrays {
 public:
  // Null if NumPy has another ABI.
  static const NDArrays* get() {
    // Never destroyed: the interpreter may be gone by then.
    static const NDArrays* const arrays = find();
    return arrays;
  }

  // Returns the array if no conversion is needed: native float32, contiguous.
  const ArrayObject* ordinary(nb::handle object) const {
    const auto* const array = reinterpret_cast<const ArrayObject*>(object.ptr());
    if (!is_ndarray(object) || array->dtype != float32_) return nullptr;
    return (array->flags & ordinary_flags) == ordinary_flags ? array : nullptr;
  }

  static void* data(const nb::object& array) {
    return reinterpret_cast<const ArrayObject*>(array.ptr())->data;
  }

  // A new array of float32.
  nb::object make(std::span<const Py_ssize_t> sizes) const {
    Py_INCREF(float32_);  // the function steals it, also on failure
    return object_from([&] {
      return new_(reinterpret_cast<PyTypeObject*>(NumPy::get().ndarray.ptr()), float32_,
                  static_cast<int>(sizes.size()), sizes.data(), nullptr, nullptr, 0, nullptr);
    });
  }

 private:
  using Version = unsigned();
  using New = PyObject*(PyTypeObject*, PyObject* dtype, int rank, const Py_ssize_t* sizes,
                        const Py_ssize_t* strides, void* data, int flags, PyObject*);

  static constexpr unsigned known_versions[] = {0x01000009, 0x02000000};
  static constexpr int version_slot = 0, new_slot = 94;
  static constexpr int ordinary_flags = 0x0101;  // contiguous and aligned

  static const NDArrays* find() {
    void* const* const table = in_python(functions);
    PyErr_Clear();
    if (table == nullptr) return nullptr;
    const unsigned version = reinterpret_cast<Version*>(table[version_slot])();
    if (std::ranges::find(known_versions, version) == std::end(known_versions)) return nullptr;
    const nb::object numpy = object_from([] { return PyImport_ImportModule("numpy"); });
    auto* const arrays = new NDArrays;
    arrays->new_ = reinterpret_cast<New*>(table[new_slot]);
    arrays->float32_ = called(attribute_of(numpy, "dtype"), python_text("float32")).release().ptr();
    return arrays;
  }

  // Null with an error set on failure.
  static void* const* functions() {
    const nb::object module = nb::steal(PyImport_ImportModule("numpy._core._multiarray_umath"));
    if (!module.is_valid()) return nullptr;
    const nb::object capsule = nb::steal(PyObject_GetAttrString(module.ptr(), "_ARRAY_API"));
    if (!capsule.is_valid()) return nullptr;
    return static_cast<void* const*>(PyCapsule_GetPointer(capsule.ptr(), nullptr));
  }

  New* new_ = nullptr;
  PyObject* float32_ = nullptr;
};

}  // namespace anybit
