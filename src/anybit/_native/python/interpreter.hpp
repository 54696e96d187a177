// SPDX-License-Identifier: Apache-2.0
// C++ wrappers of the interpreter's C API: failures throw, references are released, and threads
// survive the end of the interpreter.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>

#include "ops/types.hpp"

namespace anybit {

namespace nb = nanobind;

// A call failed, and the interpreter's error indicator is set.
struct PythonError {};

// Calls a function that may run Python code or take the GIL. Before CPython 3.14, a daemon thread
// that requests the GIL after the end of the interpreter is ended by pthread_exit. That unwinds its
// stack like an exception: destructors would release dead objects, and catch (...) would catch it.
// The thread waits here for the end of the process instead.
template <class Call>
auto in_python(const Call& call) {
  // A destructor, because not all C++ libraries let catch (...) see this unwinding.
  struct Return {
    bool seen = false;
    ~Return() {
      while (!seen) std::this_thread::sleep_for(std::chrono::hours(1));
    }
  } returned;
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    returned.seen = true;
  } else {
    const auto result = call();
    returned.seen = true;
    return result;
  }
}

// Returns the new reference from `call`. Throws PythonError if there is none.
template <class Call>
nb::object object_from(const Call& call) {
  PyObject* const object = in_python(call);
  if (object == nullptr) throw PythonError();
  return nb::steal(object);
}

inline nb::object attribute_of(nb::handle object, const char* name) {
  return object_from([&] { return PyObject_GetAttrString(object.ptr(), name); });
}

inline nb::object called(nb::handle function, const auto&... arguments) {
  PyObject* all[] = {nullptr, arguments.ptr()...};  // the first slot is reserved for the callee
  return object_from([&] {
    return PyObject_Vectorcall(function.ptr(), all + 1,
                               sizeof...(arguments) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  });
}

inline nb::object python_text(std::string_view text) {
  return object_from([&] {
    return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  });
}

inline bool is_true(nb::handle object) {
  const int truth = in_python([&] { return PyObject_IsTrue(object.ptr()); });
  if (truth < 0) throw PythonError();
  return truth == 1;
}

// str(object) and repr(object).
inline std::string text_of(nb::handle object) {
  const nb::object text = object_from([&] { return PyObject_Str(object.ptr()); });
  const char* const characters = PyUnicode_AsUTF8AndSize(text.ptr(), nullptr);
  if (characters == nullptr) throw PythonError();
  return characters;
}
inline std::string repr_of(nb::handle object) {
  return text_of(object_from([&] { return PyObject_Repr(object.ptr()); }));
}

// Runs `work`, which returns a new reference, and raises its exceptions in the interpreter.
template <class Work>
PyObject* raising(const Work& work) {
  try {
    return work();
  } catch (const PythonError&) {
  } catch (const Error& error) {
    PyErr_SetString(error.kind == Error::Kind::type ? PyExc_TypeError : PyExc_ValueError,
                    error.what());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

// Releases the GIL during its lifetime, if there is enough work.
class WithoutGil {
 public:
  explicit WithoutGil(std::int64_t elements)
      : state_(elements < elements_worth_it ? nullptr : PyEval_SaveThread()) {}
  ~WithoutGil() {
    if (state_ != nullptr) in_python([this] { PyEval_RestoreThread(state_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  static constexpr std::int64_t elements_worth_it = 4096;
  PyThreadState* state_;
};

}  // namespace anybit
