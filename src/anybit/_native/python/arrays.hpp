// SPDX-License-Identifier: Apache-2.0
// Python objects as tensors through the buffer protocol, without compiling against array libraries.
#pragma once

#include <bit>
#include <cstdlib>
#include <optional>
#include <string>

#include "exchange.hpp"
#include "interpreter.hpp"

namespace anybit {

// Functions of NumPy, looked up once.
struct NumPy {
  nb::object asarray, empty, empty_like, copy, ndarray;

  static const NumPy& get() {
    // Never destroyed: the interpreter may be gone by then.
    static const NumPy* numpy = [] {
      const nb::module_ module = nb::module_::import_("numpy");
      return new NumPy{module.attr("asarray"), module.attr("empty"), module.attr("empty_like"),
                       module.attr("copy"), module.attr("ndarray")};
    }();
    return *numpy;
  }
};

inline bool is_ndarray(nb::handle object) {
  return Py_TYPE(object.ptr()) == reinterpret_cast<PyTypeObject*>(NumPy::get().ndarray.ptr());
}

// Element type of a buffer format in native byte order; nothing for other formats.
inline std::optional<ElementType> element_type(const Py_buffer& view) {
  const char* format = view.format == nullptr ? "B" : view.format;
  constexpr char native = std::endian::native == std::endian::little ? '<' : '>';
  if (*format == '@' || *format == '=' || *format == native) ++format;
  if (format[0] == '\0' || format[1] != '\0') return std::nullopt;
  const bool eight = view.itemsize == 8;
  switch (*format) {
    case 'f':
      return ElementType::float32;
    case 'd':
      return ElementType::float64;
    case 'e':
      return ElementType::float16;
    case '?':
      return ElementType::boolean;
    case 'b':
      return ElementType::int8;
    case 'h':
      return ElementType::int16;
    case 'i':
      return ElementType::int32;
    case 'l':
      return eight ? ElementType::int64 : ElementType::int32;
    case 'q':
      return ElementType::int64;
    case 'B':
      return ElementType::uint8;
    case 'H':
      return ElementType::uint16;
    case 'I':
      return ElementType::uint32;
    case 'L':
      return eight ? ElementType::uint64 : ElementType::uint32;
    case 'Q':
      return ElementType::uint64;
    default:
      return std::nullopt;
  }
}

// A borrowed Python array, or an owned number.
class Operand {
 public:
  Operand() = default;
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;
  ~Operand() { release(); }

  // Reads a parameter: a number, a list, or anything that NumPy converts to an array of real
  // numbers; or a tensor of the library of `exchange`.
  void read(nb::handle object, std::string_view name, const dlpack::Exchange* exchange) {
    tensor_ = {};
    tensor_.given = true;
    if (PyFloat_CheckExact(object.ptr())) {
      number_.real = PyFloat_AsDouble(object.ptr());
      return literal(ElementType::float64);
    }
    if (PyLong_Check(object.ptr())) {
      int overflow = 0;
      number_.whole = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
      if (overflow == 0) return literal(ElementType::int64);
      number_.real = PyLong_AsDouble(object.ptr());
      if (number_.real == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        throw Error(Error::Kind::value, std::string(name) + " is an integer beyond every float");
      }
      return literal(ElementType::float64);
    }
    if (exchange != nullptr) return borrow(object, name, *exchange);
    if (is_ndarray(object)) return borrow(nb::borrow(object), name, false);
    const bool list = PyList_Check(object.ptr()) || PyTuple_Check(object.ptr());
    borrow(called(NumPy::get().asarray, object), name, false);
    tensor_.literal = list;
  }

  // Borrows a NumPy array. A writable one is never replaced by a copy; it has no tensor if its
  // dtype is unsupported.
  void borrow(nb::object array, std::string_view name, bool writable) {
    release();
    const bool bfloat16 = !acquire(array, writable);
    std::optional<ElementType> type;
    if (bfloat16) {
      if (text_of(attribute_of(attribute_of(array, "dtype"), "name")) != "bfloat16")
        fail(array, name);
      const nb::object bits = called(attribute_of(array, "view"), python_text("uint16"));
      if (!acquire(bits, writable)) fail(array, name);
      type = ElementType::bfloat16;
    } else {
      type = element_type(view_);
    }
    if (!type && !writable) {
      // Other byte orders are converted; a dtype without a native equivalent is not a real number.
      const nb::object native =
          called(attribute_of(attribute_of(array, "dtype"), "newbyteorder"), python_text("="));
      array = called(attribute_of(array, "astype"), native);
      if (acquire(array, false)) type = element_type(view_);
    }
    if (!type && writable) return;  // no tensor: matches no dtype
    if (!type) fail(array, name);
    owner_ = std::move(array);
    if (!is_aligned()) {
      if (writable) throw Error(Error::Kind::value, std::string(name) + " must be aligned");
      return borrow(called(NumPy::get().copy, owner_), name, false);
    }
    tensor_ = {view_.buf, *type, view_.ndim, shape(), strides(), true, false};
  }

  // Borrows a tensor of another library.
  void borrow(nb::handle object, std::string_view name, const dlpack::Exchange& exchange) {
    release();
    tensor_ = tensor_memory_.borrow(object, exchange, name);
    owner_ = nb::borrow(object);
  }

  const Tensor& tensor() const { return tensor_; }
  const nb::object& object() const { return owner_; }

  // Whether the memory of both may overlap.
  bool touches(const Operand& other) const {
    const auto [first, last] = extent();
    const auto [other_first, other_last] = other.extent();
    return first < other_last && other_first < last;
  }

  bool is_same_memory(const Operand& other) const {
    const Tensor& own = tensor_;
    const Tensor& others = other.tensor_;
    return own.data == others.data && own.type == others.type && own.rank == others.rank &&
           std::equal(own.shape, own.shape + own.rank, others.shape) &&
           std::equal(own.strides, own.strides + own.rank, others.strides);
  }

 private:
  static_assert(sizeof(Py_ssize_t) == sizeof(std::int64_t), "anybit needs a 64-bit Python");

  void literal(ElementType type) {
    tensor_.data = &number_;
    tensor_.type = type;
    tensor_.literal = true;
  }

  bool acquire(const nb::object& array, bool writable) {
    release();
    const int flags = PyBUF_FORMAT | PyBUF_STRIDES | (writable ? PyBUF_WRITABLE : 0);
    held_ = in_python([&] { return PyObject_GetBuffer(array.ptr(), &view_, flags); }) == 0;
    if (held_) return true;
    // NumPy raises ValueError for dtypes that the protocol cannot name, and for read-only arrays.
    if (!PyErr_ExceptionMatches(PyExc_ValueError)) throw PythonError();
    PyErr_Clear();
    if (writable && !is_true(attribute_of(attribute_of(array, "flags"), "writeable")))
      throw Error(Error::Kind::value, "out must be writable, got a read-only array");
    return false;
  }

  void release() {
    if (!held_) return owner_.reset();
    in_python([this] {
      PyBuffer_Release(&view_);
      owner_.reset();
    });
    held_ = false;
  }

  [[noreturn]] static void fail(const nb::object& array, std::string_view name) {
    throw Error(Error::Kind::type, std::string(name) + " must hold real numbers, got dtype " +
                                       text_of(attribute_of(array, "dtype")));
  }

  bool is_aligned() const {
    const auto size = static_cast<std::uintptr_t>(view_.itemsize);
    bool aligned = reinterpret_cast<std::uintptr_t>(view_.buf) % size == 0;
    for (int i = 0; i < view_.ndim; ++i)
      aligned = aligned && static_cast<std::uintptr_t>(std::abs(view_.strides[i])) % size == 0;
    return aligned;
  }

  const std::int64_t* shape() const { return reinterpret_cast<std::int64_t*>(view_.shape); }
  const std::int64_t* strides() const { return reinterpret_cast<std::int64_t*>(view_.strides); }

  std::pair<const char*, const char*> extent() const {
    if (!owner_.is_valid()) return {nullptr, nullptr};
    const char* first = static_cast<const char*>(tensor_.data);
    const char* last = first + size_of(tensor_.type);
    for (int i = 0; i < tensor_.rank; ++i) {
      if (tensor_.shape[i] == 0) return {nullptr, nullptr};
      const std::int64_t reach = (tensor_.shape[i] - 1) * tensor_.strides[i];
      (reach < 0 ? first : last) += reach;
    }
    return {first, last};
  }

  Tensor tensor_;
  Py_buffer view_{};
  nb::object owner_;
  bool held_ = false;
  dlpack::Borrowed tensor_memory_;
  union {
    double real;
    long long whole;
  } number_{};
};

}  // namespace anybit
