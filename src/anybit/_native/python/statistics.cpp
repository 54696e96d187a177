// SPDX-License-Identifier: Apache-2.0
#include "statistics.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <vector>

#include "_native/engine/statistics.hpp"
#include "network_arrays.hpp"

namespace anybit {
namespace {

template <class Element>
std::span<Element> writable(const Buffer& buffer, ElementType type, const char* name) {
  const std::span<const Element> elements = buffer.elements<Element>(type, name);
  return {static_cast<Element*>(buffer.view().buf), elements.size()};
}

// Statistics of a tensor, and one of its arrays.
class Tally {
 public:
  void read(PyObject* array, PyObject* axis, PyObject* counts, PyObject* extremes) {
    if (!array_.read(array, false) || !counts_.read(counts, true))
      throw Error(Error::Kind::type, "arrays and counts must be contiguous, and counts writable");
    values_.all = array_.elements<float>(ElementType::float32, "an array");
    own_ = writable<std::int64_t>(counts_, ElementType::int64, "counts");
    if (own_.size() != bins) throw Error(Error::Kind::value, "counts must be of every bin");
    values_.inner = std::max<std::size_t>(values_.all.size(), 1);
    if (axis != Py_None) read_channels(axis, extremes);
    latest_.assign(2 * values_.channels, none_above);
    std::ranges::fill(both(latest_).highs, -none_above);
  }

  std::int64_t size() const { return static_cast<std::int64_t>(values_.all.size()); }

  // Changes nothing if a value is not finite.
  void add() {
    is_finite_ = are_finite(values_.all);
    if (!is_finite_) return;
    const Extremes latest = both(latest_);
    widen(values_, latest);
    count(values_.all, own_);
    for (std::size_t i = 0; i < values_.channels; ++i) {
      if (!extremes_so_far_.empty()) both(extremes_so_far_).add(i, latest.lows[i], latest.highs[i]);
      low_ = std::min(low_, latest.lows[i]), high_ = std::max(high_, latest.highs[i]);
    }
  }

  nb::object extremes() const {
    constexpr float none = std::numeric_limits<float>::quiet_NaN();
    return nb::make_tuple(is_finite_ ? low_ : none, is_finite_ ? high_ : none);
  }

 private:
  Extremes both(std::span<float> ends) const {
    return {ends.first(values_.channels), ends.last(values_.channels)};
  }

  void read_channels(PyObject* axis, PyObject* extremes) {
    const Py_buffer& view = array_.view();
    const long long at = PyLong_AsLongLong(axis);
    if (at == -1 && PyErr_Occurred() != nullptr) throw PythonError();
    if (at < 0 || at >= view.ndim)
      throw Error(Error::Kind::value, "an axis must be one of the array, from 0 on");
    values_.channels = static_cast<std::size_t>(view.shape[at]);
    values_.inner = 1;
    for (int i = static_cast<int>(at) + 1; i < view.ndim; ++i)
      values_.inner *= static_cast<std::size_t>(view.shape[i]);
    if (!extremes_.read(extremes, true))
      throw Error(Error::Kind::type, "extremes must be contiguous and writable");
    extremes_so_far_ = writable<float>(extremes_, ElementType::float32, "extremes");
    if (extremes_so_far_.size() != 2 * values_.channels)
      throw Error(Error::Kind::value, "extremes must be two of each channel");
  }

  Buffer array_, counts_, extremes_;
  Values values_;
  std::span<std::int64_t> own_;
  std::span<float> extremes_so_far_;
  std::vector<float> latest_;
  float low_ = none_above, high_ = -none_above;
  bool is_finite_ = true;
};

PyObject* item(PyObject* list, std::size_t at) {
  PyObject* const item = PyList_GetItem(list, static_cast<Py_ssize_t>(at));
  if (item == nullptr) throw PythonError();  // reading another item changed the list
  return item;
}

PyObject* count_values(PyObject*, PyObject* const* lists, Py_ssize_t count) {
  return raising([&] {
    if (count != 4 || !std::all_of(lists, lists + count, [](auto* e) { return PyList_Check(e); }))
      throw Error(Error::Kind::type, "count_values() takes four lists");
    const auto size = static_cast<std::size_t>(PyList_Size(lists[0]));
    for (int i = 1; i < 4; ++i)
      if (static_cast<std::size_t>(PyList_Size(lists[i])) != size)
        throw Error(Error::Kind::value, "lists must have as many items as one another");
    std::vector<Tally> tallies(size);
    std::int64_t values = 0;
    for (std::size_t i = 0; i < size; ++i) {
      tallies[i].read(item(lists[0], i), item(lists[1], i), item(lists[2], i), item(lists[3], i));
      values += tallies[i].size();
    }
    {
      const WithoutGil unlocked(values);
      for (Tally& tally : tallies) tally.add();
    }
    nb::list extremes;
    for (const Tally& tally : tallies) extremes.append(tally.extremes());
    return extremes.release().ptr();
  });
}

PyObject* squared_difference_of(PyObject*, PyObject* const* arrays, Py_ssize_t count) {
  return raising([&] {
    if (count != 2) throw Error(Error::Kind::type, "squared_difference() takes two arrays");
    std::array<Buffer, 2> buffers;
    for (std::size_t i = 0; i < 2; ++i)
      if (!buffers[i].read(arrays[i], false))
        throw Error(Error::Kind::type, "arrays must be contiguous");
    const auto a = buffers[0].elements<float>(ElementType::float32, "the first");
    const auto b = buffers[1].elements<float>(ElementType::float32, "the second");
    if (a.size() != b.size())
      throw Error(Error::Kind::value, "arrays must have as many elements as one another");
    double sum = 0;
    {
      const WithoutGil unlocked(static_cast<std::int64_t>(a.size()));
      sum = squared_difference(a, b);
    }
    return PyFloat_FromDouble(sum);
  });
}

PyCFunction fast(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace

void add_statistics(const nb::module_& module) {
  static PyMethodDef functions[] = {
      {"count_values", fast(count_values), METH_FASTCALL,
       "Count the values of arrays in bins, widen the extremes of their channels, and give those "
       "of each array."},
      {"squared_difference", fast(squared_difference_of), METH_FASTCALL,
       "The sum of the squares of what two arrays differ in, in float64."},
  };
  const nb::object name = attribute_of(module, "__name__");
  for (PyMethodDef& method : functions)
    module.attr(method.ml_name) =
        object_from([&] { return PyCFunction_NewEx(&method, nullptr, name.ptr()); });
}

}  // namespace anybit
