// SPDX-License-Identifier: Apache-2.0
// The arrays of a call of a network.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "_native/lowbit/network.hpp"
#include "arrays.hpp"

namespace anybit {

// A contiguous buffer of one element type.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (held_) in_python([this] { PyBuffer_Release(&view_); });
  }

  // Whether the object has such a buffer.
  bool read(nb::handle object, bool writable) {
    const int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    held_ = in_python([&] { return PyObject_GetBuffer(object.ptr(), &view_, flags); }) == 0;
    if (!held_) PyErr_Clear();
    return held_;
  }
  const Py_buffer& view() const { return view_; }
  bool holds(ElementType type) const {
    return element_type(view_) == type && reinterpret_cast<std::uintptr_t>(view_.buf) %
                                                  static_cast<std::uintptr_t>(size_of(type)) ==
                                              0;
  }

  template <class Element>
  std::span<const Element> elements(ElementType type, const char* name) const {
    if (!held_ || !holds(type))
      throw Error(Error::Kind::type, std::string(name) + " must be a contiguous array of " +
                                         std::string(name_of(type)));
    return {static_cast<const Element*>(view_.buf),
            static_cast<std::size_t>(view_.len) / sizeof(Element)};
  }

 private:
  Py_buffer view_{};
  bool held_ = false;
};

// A copy that is contiguous and of float32 in this machine's byte order.
inline nb::object contiguous(nb::handle array) {
  if (!is_ndarray(array))
    throw Error(Error::Kind::type, "an input must be a NumPy array, got " + repr_of(array.type()));
  if (text_of(attribute_of(attribute_of(array, "dtype"), "name")) != "float32")
    throw Error(Error::Kind::type,
                "an input must be float32, got " + text_of(attribute_of(array, "dtype")));
  const nb::object numpy = object_from([] { return PyImport_ImportModule("numpy"); });
  return called(attribute_of(numpy, "ascontiguousarray"), array, python_text("float32"));
}

// An input of a call.
class Given {
 public:
  const float* read(nb::handle array, const lowbit::Network::Sizes& sizes, std::int64_t& rows) {
    if (!buffer_.read(array, false) || !buffer_.holds(ElementType::float32)) {
      copy_ = contiguous(array);
      if (!copied_.read(copy_, false)) throw Error(Error::Kind::type, "an input has no memory");
    }
    const Py_buffer& view = copy_.is_valid() ? copied_.view() : buffer_.view();
    const bool fits = view.ndim == static_cast<int>(sizes.size()) + 1 &&
                      std::equal(sizes.begin(), sizes.end(), view.shape + 1) &&
                      (rows < 0 || rows == view.shape[0]);
    if (!fits) refuse(view, sizes, rows);
    rows = view.shape[0];
    return static_cast<const float*>(view.buf);
  }

 private:
  [[noreturn]] static void refuse(const Py_buffer& view, const lowbit::Network::Sizes& sizes,
                                  std::int64_t rows) {
    const auto listed = [](const std::string& first, const auto* begin, const auto* end) {
      std::string text = "(" + first;
      for (const auto* size = begin; size != end; ++size)
        text += (text.size() > 1 ? ", " : "") + std::to_string(*size);
      return text + ")";
    };
    const std::string wanted = rows < 0 ? "n" : std::to_string(rows);
    throw Error(Error::Kind::value, "an input must have shape " +
                                        listed(wanted, sizes.data(), sizes.data() + sizes.size()) +
                                        ", got " + listed("", view.shape, view.shape + view.ndim));
  }

  Buffer buffer_, copied_;
  nb::object copy_;
};

// An array that a call makes.
class Made {
 public:
  float* make(const lowbit::Network::Sizes& sizes, std::int64_t rows, nb::handle dtype) {
    const nb::object shape = object_from([&]() -> PyObject* {
      PyObject* const tuple = PyTuple_New(static_cast<Py_ssize_t>(sizes.size()) + 1);
      if (tuple == nullptr) return nullptr;
      PyTuple_SET_ITEM(tuple, 0, PyLong_FromLongLong(rows));
      for (std::size_t i = 0; i < sizes.size(); ++i)
        PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i + 1), PyLong_FromLongLong(sizes[i]));
      return tuple;
    });
    array_ = called(NumPy::get().empty, shape, dtype);
    if (!buffer_.read(array_, true)) throw PythonError();
    return static_cast<float*>(buffer_.view().buf);
  }
  nb::object take() { return std::move(array_); }

 private:
  nb::object array_;
  Buffer buffer_;
};

// Arrays for a number of inputs or outputs that is small as a rule.
template <class Element>
class Few {
 public:
  explicit Few(std::size_t count) : count_(count) {
    if (count > few_.size()) many_ = std::make_unique<Element[]>(count);
  }
  Element* data() { return many_ ? many_.get() : few_.data(); }
  Element& operator[](std::size_t i) { return data()[i]; }
  std::size_t size() const { return count_; }

 private:
  std::array<Element, 2> few_{};
  std::unique_ptr<Element[]> many_;
  std::size_t count_;
};

// A network runs on inputs and makes outputs.
class NetworkArrays {
 public:
  NetworkArrays(const lowbit::Network& network, nb::handle dtype, nb::handle given)
      : inputs_(network.inputs().size()),
        outputs_(network.outputs().size()),
        from_(inputs_.size()),
        to_(outputs_.size()) {
    const bool list = PyList_Check(given.ptr()) != 0 || PyTuple_Check(given.ptr()) != 0;
    // Reading an array may run code of the caller, which must not change what is read.
    nb::object arrays;
    if (list) arrays = object_from([&] { return PySequence_Tuple(given.ptr()); });
    const Py_ssize_t count = list ? PyTuple_GET_SIZE(arrays.ptr()) : -1;
    if (count != static_cast<Py_ssize_t>(inputs_.size()))
      throw Error(Error::Kind::value, "inputs must be a list of " + std::to_string(inputs_.size()) +
                                          " arrays, got " +
                                          (list ? std::to_string(count) : repr_of(given)));
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      from_[i] = inputs_[i].read(PyTuple_GET_ITEM(arrays.ptr(), static_cast<Py_ssize_t>(i)),
                                 network.inputs()[i], rows_);
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      to_[i] = outputs_[i].make(network.outputs()[i], rows_, dtype);
  }

  const float* const* inputs() { return from_.data(); }
  float* const* outputs() { return to_.data(); }
  std::int64_t rows() const { return rows_; }

  nb::object results() {
    return object_from([&]() -> PyObject* {
      PyObject* const list = PyList_New(static_cast<Py_ssize_t>(outputs_.size()));
      if (list == nullptr) return nullptr;
      for (std::size_t i = 0; i < outputs_.size(); ++i)
        PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), outputs_[i].take().release().ptr());
      return list;
    });
  }

 private:
  Few<Given> inputs_;
  Few<Made> outputs_;
  Few<const float*> from_;
  Few<float*> to_;
  std::int64_t rows_ = -1;
};

}  // namespace anybit
