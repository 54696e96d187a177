// SPDX-License-Identifier: Apache-2.0
// Arrays of a call of a network.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <span>

#include "_native/lowbit/network.hpp"
#include "ndarrays.hpp"

namespace anybit {

using Sizes = lowbit::Network::Sizes;

// A contiguous buffer of one element type.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { release(); }

  // Acquires the buffer; returns whether the object has one.
  bool read(nb::handle object, bool writable) {
    release();
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
  void release() {
    if (held_) in_python([this] { PyBuffer_Release(&view_); });
    held_ = false;
  }

  Py_buffer view_;  // if held
  bool held_ = false;
};

// Copies an array to contiguous native float32.
inline nb::object contiguous(nb::handle array) {
  if (!is_ndarray(array))
    throw Error(Error::Kind::type, "an input must be a NumPy array, got " + repr_of(array.type()));
  if (text_of(attribute_of(attribute_of(array, "dtype"), "name")) != "float32")
    throw Error(Error::Kind::type,
                "an input must be float32, got " + text_of(attribute_of(array, "dtype")));
  const nb::object numpy = object_from([] { return PyImport_ImportModule("numpy"); });
  return called(attribute_of(numpy, "ascontiguousarray"), array, python_text("float32"));
}

// Array with inline storage for a few elements.
template <class Element, std::size_t usual = 2>
class Few {
 public:
  explicit Few(std::size_t count) : count_(count) {
    if (count > usual) many_ = std::make_unique<Element[]>(count);
  }
  Element* data() { return many_ ? many_.get() : few_.data(); }
  Element& operator[](std::size_t i) { return data()[i]; }
  std::size_t size() const { return count_; }

 private:
  std::array<Element, usual> few_;
  std::unique_ptr<Element[]> many_;
  std::size_t count_;
};

// An input of a call.
class Given {
 public:
  const float* read(nb::handle array, const NDArrays* arrays, const Sizes& sizes,
                    std::int64_t& rows) {
    if (const auto* const ordinary = arrays == nullptr ? nullptr : arrays->ordinary(array)) {
      owner_ = nb::borrow(array);
      return checked(ordinary->data, ordinary->sizes, ordinary->rank, sizes, rows);
    }
    if (!buffer_.read(array, false) || !buffer_.holds(ElementType::float32)) {
      owner_ = contiguous(array);
      if (!buffer_.read(owner_, false)) throw Error(Error::Kind::type, "an input has no memory");
    }
    const Py_buffer& view = buffer_.view();
    return checked(view.buf, view.shape, view.ndim, sizes, rows);
  }

 private:
  static const float* checked(const void* data, const Py_ssize_t* shape, int rank,
                              const Sizes& sizes, std::int64_t& rows) {
    if (rank != static_cast<int>(sizes.size()) + 1 ||
        !std::equal(sizes.begin(), sizes.end(), shape + 1) || (rows >= 0 && rows != shape[0]))
      refuse(shape, rank, sizes, rows);
    rows = shape[0];
    return static_cast<const float*>(data);
  }

  [[noreturn]] static void refuse(const Py_ssize_t* shape, int rank, const Sizes& sizes,
                                  std::int64_t rows) {
    const auto listed = [](const std::string& first, const auto* begin, const auto* end) {
      std::string text = "(" + first;
      for (const auto* size = begin; size != end; ++size)
        text += (text.size() > 1 ? ", " : "") + std::to_string(*size);
      return text + ")";
    };
    const std::string expected = rows < 0 ? "n" : std::to_string(rows);
    throw Error(Error::Kind::value,
                "an input must have shape " +
                    listed(expected, sizes.data(), sizes.data() + sizes.size()) + ", got " +
                    listed("", shape, shape + rank));
  }

  nb::object owner_;
  Buffer buffer_;
};

// An output array of a call.
class Made {
 public:
  float* make(const NDArrays* arrays, const Sizes& sizes, std::int64_t rows) {
    Few<Py_ssize_t, 4> shape(sizes.size() + 1);
    shape[0] = rows;
    std::copy(sizes.begin(), sizes.end(), shape.data() + 1);
    if (arrays != nullptr) {
      array_ = arrays->make({shape.data(), shape.size()});
      return static_cast<float*>(NDArrays::data(array_));
    }
    nb::list listed;
    for (std::size_t i = 0; i < shape.size(); ++i) listed.append(shape[i]);
    array_ = called(NumPy::get().empty, listed, python_text("float32"));
    if (!buffer_.read(array_, true)) throw PythonError();
    return static_cast<float*>(buffer_.view().buf);
  }
  nb::object take() { return std::move(array_); }

 private:
  nb::object array_;
  Buffer buffer_;
};

[[noreturn]] inline void refuse_inputs(const lowbit::Network& network, const std::string& count) {
  throw Error(Error::Kind::value, "inputs must be a list of " +
                                      std::to_string(network.inputs().size()) + " arrays, got " +
                                      count);
}

// Runs a network on inputs, and makes outputs.
class NetworkArrays {
 public:
  NetworkArrays(const lowbit::Network& network, const NDArrays* arrays,
                std::span<PyObject* const> arguments)
      : inputs_(network.inputs().size()),
        outputs_(network.outputs().size()),
        from_(inputs_.size()),
        to_(outputs_.size()) {
    if (arguments.size() != inputs_.size())
      refuse_inputs(network, std::to_string(arguments.size()));
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      from_[i] = inputs_[i].read(arguments[i], arrays, network.inputs()[i], rows_);
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      to_[i] = outputs_[i].make(arrays, network.outputs()[i], rows_);
  }

  const float* const* inputs() { return from_.data(); }
  float* const* outputs() { return to_.data(); }
  std::int64_t rows() const { return rows_; }

  nb::object result(std::size_t i) { return outputs_[i].take(); }
  nb::object results() {
    return object_from([&]() -> PyObject* {
      PyObject* const list = PyList_New(static_cast<Py_ssize_t>(outputs_.size()));
      if (list == nullptr) return nullptr;
      for (std::size_t i = 0; i < outputs_.size(); ++i)
        PyList_SetItem(list, static_cast<Py_ssize_t>(i), result(i).release().ptr());
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
