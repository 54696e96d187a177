// SPDX-License-Identifier: Apache-2.0
#include "network_object.hpp"

#include <array>
#include <limits>
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

// Work for which the GIL is released, in the unit of WithoutGil.
std::int64_t worth(const Network& network, std::int64_t rows) {
  return network.nanoseconds(rows) / 2;
}

// Inputs of a call, copied: reading one may run code of the caller that changes the list.
nb::object tuple_of(const Network& network, nb::handle inputs) {
  if (PyList_Check(inputs.ptr()) == 0 && PyTuple_Check(inputs.ptr()) == 0)
    refuse_inputs(network, repr_of(inputs));
  return object_from([&] { return PySequence_Tuple(inputs.ptr()); });
}

Few<PyObject*> items_of(const nb::object& tuple) {
  Few<PyObject*> items(static_cast<std::size_t>(PyTuple_Size(tuple.ptr())));
  for (std::size_t i = 0; i < items.size(); ++i)
    items[i] = PyTuple_GetItem(tuple.ptr(), static_cast<Py_ssize_t>(i));
  return items;
}

void run_on(const Network& network, NetworkArrays& arrays) {
  const WithoutGil unlocked(worth(network, arrays.rows()));
  network.run(arrays.inputs(), arrays.outputs(), arrays.rows(), pool());
}

PyObject* run(PyObject* self, PyObject* inputs) {
  return raising([&] {
    const nb::object tuple = tuple_of(*of(self).network, inputs);
    Few<PyObject*> items = items_of(tuple);
    NetworkArrays arrays(*of(self).network, of(self).arrays, {items.data(), items.size()});
    run_on(*of(self).network, arrays);
    return arrays.results().release().ptr();
  });
}

PyObject* run_timed(PyObject* self, PyObject* inputs) {
  return raising([&] {
    const nb::object tuple = tuple_of(*of(self).network, inputs);
    Few<PyObject*> items = items_of(tuple);
    NetworkArrays arrays(*of(self).network, of(self).arrays, {items.data(), items.size()});
    const Network& network = *of(self).network;
    std::vector<double> seconds(network.report().size());
    {
      const WithoutGil unlocked(worth(network, arrays.rows()));
      network.run_timed(arrays.inputs(), arrays.outputs(), arrays.rows(), seconds.data());
    }
    nb::list times;
    for (const double time : seconds) times.append(time);
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
    if (PyTuple_Size(arguments) != 4 || (keywords != nullptr && PyDict_Size(keywords) > 0))
      throw Error(Error::Kind::type, "Network() takes words, bytes, integers and floats");
    std::array<Buffer, 4> buffers;
    for (std::size_t i = 0; i < buffers.size(); ++i)
      buffers[i].read(PyTuple_GetItem(arguments, static_cast<Py_ssize_t>(i)), false);
    const lowbit::Encoded encoded{buffers[0].elements<std::int64_t>(ElementType::int64, "words"),
                                  buffers[1].elements<std::uint8_t>(ElementType::uint8, "bytes"),
                                  buffers[2].elements<std::int32_t>(ElementType::int32, "integers"),
                                  buffers[3].elements<float>(ElementType::float32, "floats")};
    std::unique_ptr<const Network> network;
    {
      const WithoutGil unlocked(std::numeric_limits<std::int64_t>::max());
      network = std::make_unique<const Network>(encoded);
    }
    const NDArrays* const arrays = NDArrays::get();
    nb::object object = object_from([&] { return PyType_GenericAlloc(type, 0); });
    of(object.ptr()).network = network.release();
    of(object.ptr()).arrays = arrays;
    return object.release().ptr();
  });
}

void destroy(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  delete of(self).network;
  PyObject_Free(self);
  Py_DECREF(type);
}

PyMethodDef methods[] = {
    {"run", run, METH_O, "The outputs for a list of inputs."},
    {"run_timed", run_timed, METH_O, "The same, and the seconds that each instruction took."},
    {"describe", describe, METH_NOARGS, "What was chosen for each instruction."},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject* network_type = nullptr;

// Call of a small network without a Python frame; returns the output by name.
struct CallObject {
  PyObject head;
  PyObject *network, *name, *otherwise;
};

CallObject& call_of(PyObject* object) { return *reinterpret_cast<CallObject*>(object); }

// Null if the array has another shape, or values that the network rejects.
nb::object named_output(const CallObject& call, PyObject* array) {
  try {
    const Network& network = *of(call.network).network;
    NetworkArrays arrays(network, of(call.network).arrays, {&array, 1});
    run_on(network, arrays);
    const nb::object dict = object_from([] { return PyDict_New(); }), result = arrays.result(0);
    if (in_python([&] { return PyDict_SetItem(dict.ptr(), call.name, result.ptr()); }) != 0)
      throw PythonError();
    return dict;
  } catch (const Error&) {
    return {};
  }
}

PyObject* call_run(PyObject* self, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  return raising([&] {
    const CallObject& call = call_of(self);
    if (count == 1 && names == nullptr && is_ndarray(arguments[0]))
      if (nb::object outputs = named_output(call, arguments[0]); outputs.is_valid())
        return outputs.release().ptr();
    return in_python([&] {
      return PyObject_Vectorcall(call.otherwise, arguments, static_cast<std::size_t>(count), names);
    });
  });
}

PyObject* make_call(PyTypeObject* type, PyObject* arguments, PyObject*) {
  return raising([&] {
    const auto at = [&](Py_ssize_t i) { return PyTuple_GetItem(arguments, i); };
    if (PyTuple_Size(arguments) != 3 || !PyObject_TypeCheck(at(0), network_type) ||
        of(at(0)).network->inputs().size() != 1 || of(at(0)).network->outputs().size() != 1)
      throw Error(Error::Kind::type,
                  "Call() takes a network of one input and output, a name and a function");
    const nb::object object = object_from([&] { return PyType_GenericAlloc(type, 0); });
    call_of(object.ptr()) = {call_of(object.ptr()).head, Py_NewRef(at(0)), Py_NewRef(at(1)),
                             Py_NewRef(at(2))};
    return nb::object(object).release().ptr();
  });
}

void destroy_call(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  for (PyObject* object : {call_of(self).network, call_of(self).name, call_of(self).otherwise})
    Py_XDECREF(object);
  PyObject_Free(self);
  Py_DECREF(type);
}

PyMethodDef call_methods[] = {
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_run)),
     METH_FASTCALL | METH_KEYWORDS,
     "run($self, inputs, *, progress=None)\n--\n\n"
     "The only output by its name, or what the function gives: see anybit.Model.run."},
    {nullptr, nullptr, 0, nullptr},
};

void add_calls(const nb::module_& module) {
  static PyType_Slot slots[] = {
      {Py_tp_new, reinterpret_cast<void*>(make_call)},
      {Py_tp_dealloc, reinterpret_cast<void*>(destroy_call)},
      {Py_tp_methods, call_methods},
      {Py_tp_doc, const_cast<char*>("A network on arrays, and a function for everything else.")},
      {0, nullptr},
  };
  static PyType_Spec spec{"anybit._native._core.Call", sizeof(CallObject), 0, Py_TPFLAGS_DEFAULT,
                          slots};
  module.attr("Call") = object_from([] { return PyType_FromSpec(&spec); });
}

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
  nb::object type = object_from([] { return PyType_FromSpec(&spec); });
  network_type = reinterpret_cast<PyTypeObject*>(type.ptr());
  module.attr("Network") = type;
  add_calls(module);
  module.attr("program") = describe_records();
}

}  // namespace anybit
