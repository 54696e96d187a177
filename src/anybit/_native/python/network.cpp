// SPDX-License-Identifier: Apache-2.0
#include "network.hpp"

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "_native/threads/pool.hpp"
#include "network_arrays.hpp"
#include "records.hpp"

namespace anybit {
namespace {

using lowbit::Network;

// A Python object that owns a network.
struct NetworkObject {
  PyObject head;
  const Network* network;
  const NDArrays* arrays;
};

NetworkObject& of(PyObject* object) { return *reinterpret_cast<NetworkObject*>(object); }

// So much work that others may have the interpreter meanwhile, in what WithoutGil counts.
std::int64_t worth(const Network& network, std::int64_t rows) {
  return network.nanoseconds(rows) / 2;
}

// The inputs of a call: reading one may run code of the caller, which must not change the list.
nb::object tuple_of(const Network& network, nb::handle inputs) {
  if (PyList_Check(inputs.ptr()) == 0 && PyTuple_Check(inputs.ptr()) == 0)
    refuse_inputs(network, repr_of(inputs));
  return object_from([&] { return PySequence_Tuple(inputs.ptr()); });
}

std::span<PyObject* const> items_of(const nb::object& tuple) {
  return {reinterpret_cast<PyTupleObject*>(tuple.ptr())->ob_item,
          static_cast<std::size_t>(PyTuple_GET_SIZE(tuple.ptr()))};
}

void run_on(const Network& network, NetworkArrays& arrays) {
  const WithoutGil unlocked(worth(network, arrays.rows()));
  network.run(arrays.inputs(), arrays.outputs(), arrays.rows(), pool());
}

PyObject* run(PyObject* self, PyObject* inputs) {
  return raising([&] {
    const nb::object tuple = tuple_of(*of(self).network, inputs);
    NetworkArrays arrays(*of(self).network, of(self).arrays, items_of(tuple));
    run_on(*of(self).network, arrays);
    return arrays.results().release().ptr();
  });
}

PyObject* run_array(PyObject* self, PyObject* input) {
  return raising([&] {
    if (!is_ndarray(input) || of(self).network->outputs().size() != 1)
      throw Error(Error::Kind::type, "run_array takes the only array and gives the only one");
    NetworkArrays arrays(*of(self).network, of(self).arrays, {&input, 1});
    run_on(*of(self).network, arrays);
    return arrays.result(0).release().ptr();
  });
}

PyObject* run_timed(PyObject* self, PyObject* inputs) {
  return raising([&] {
    const nb::object tuple = tuple_of(*of(self).network, inputs);
    NetworkArrays arrays(*of(self).network, of(self).arrays, items_of(tuple));
    const Network& network = *of(self).network;
    std::vector<double> seconds(network.report().size());
    {
      const WithoutGil unlocked(worth(network, arrays.rows()));
      network.run_timed(arrays.inputs(), arrays.outputs(), arrays.rows(), seconds.data());
    }
    nb::list times;
    for (const double each : seconds) times.append(each);
    return nb::make_tuple(arrays.results(), times).release().ptr();
  });
}

PyObject* describe(PyObject* self, PyObject*) {
  return raising([&] {
    const Network& network = *of(self).network;
    const auto text = [](std::string_view view) { return nb::str(view.data(), view.size()); };
    nb::list stages;
    for (const lowbit::StageReport& report : network.report()) {
      nb::dict stage;
      stage["instruction"] = text(report.instruction);
      stage["kernel"] = text(report.kernel);
      stage["source"] = text(report.source);
      stage["target"] = text(report.target);
      stage["bytes"] = report.bytes;
      stage["multiplications"] = report.multiplications;
      stages.append(stage);
    }
    nb::dict description;
    description["stages"] = stages;
    description["rows_together"] = network.rows_together();
    description["memory"] = network.memory();
    return description.release().ptr();
  });
}

PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
  return raising([&] {
    if (PyTuple_GET_SIZE(arguments) != 4 || (keywords != nullptr && PyDict_Size(keywords) > 0))
      throw Error(Error::Kind::type, "Network() takes words, bytes, integers and floats");
    std::array<Buffer, 4> buffers;
    for (std::size_t i = 0; i < buffers.size(); ++i)
      buffers[i].read(PyTuple_GET_ITEM(arguments, static_cast<Py_ssize_t>(i)), false);
    const lowbit::Encoded encoded{buffers[0].elements<std::int64_t>(ElementType::int64, "words"),
                                  buffers[1].elements<std::uint8_t>(ElementType::uint8, "bytes"),
                                  buffers[2].elements<std::int32_t>(ElementType::int32, "integers"),
                                  buffers[3].elements<float>(ElementType::float32, "floats")};
    auto network = std::make_unique<Network>(encoded);
    const NDArrays* const arrays = NDArrays::get();
    nb::object object = object_from([&] { return type->tp_alloc(type, 0); });
    of(object.ptr()).network = network.release();
    of(object.ptr()).arrays = arrays;
    return object.release().ptr();
  });
}

void destroy(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete of(self).network;
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"run", run, METH_O, "The outputs for a list of inputs."},
    {"run_array", run_array, METH_O, "The only output for the only input, an ndarray."},
    {"run_timed", run_timed, METH_O, "The same, and the seconds that each instruction took."},
    {"describe", describe, METH_NOARGS, "What was chosen for each instruction."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void add_networks(const nb::module_& module) {
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(make)},
      {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
      {Py_tp_methods, methods},
      {Py_tp_doc, const_cast<char*>("A program of an integer region, ready to run.")},
      {0, nullptr},
  };
  static PyType_Spec spec{"anybit._native._core.Network", sizeof(NetworkObject), 0,
                          Py_TPFLAGS_DEFAULT, slots};
  module.attr("Network") = object_from([] { return PyType_FromSpec(&spec); });
  module.attr("program") = describe_records();
}

}  // namespace anybit
