# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: exact options, sessions with the operator library, and runs.

`make_session` creates every session of this package, so each one computes the graph as written.
"""

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime  # type: ignore[import-untyped]
from onnxruntime.capi import onnxruntime_pybind11_state  # type: ignore[import-untyped]

from anybit._native import may_spin, num_threads
from anybit.onnx.files.message import serialize
from anybit.onnx.graph.constants import Array
from anybit.onnx.library import has_entry, register, register_domains
from anybit.onnx.ort_values import to_array, to_ort_value

Provider: TypeAlias = str | tuple[str, dict[str, Any]]

# Results must not depend on graph optimizations. Fused quantized operators of the runtime round
# differently from the nodes that they replace (ONNX Runtime issue 32132). If a caller allows them,
# MatMulNBits still has to compute in float32 (1) instead of quantizing x to 8 bits.
_EXACT = {
    "session.disable_quant_qdq": "1",
    "session.qdq_matmulnbits_accuracy_level": "1",
}

_SPINNING = "session.intra_op.allow_spinning"

# Memory planning searches all pending results for reusable memory: a model of 10 000 nodes takes
# seconds to load. Without it, every result has memory of its own until its last use.
_MOST_NODES_TO_PLAN = 5000

# Protobuf's limit of 2 GiB, less what the tensors' names and shapes take.
_LARGEST_MESSAGE = 2**31 - 2**24

# NumPy's own types, and the runtime's names of their tensors.
_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
_PLAIN = {np.dtype(name): f"tensor({name})" for name in ("bool", "float16", *_INTEGERS)} | {
    np.dtype("float32"): "tensor(float)",
    np.dtype("float64"): "tensor(double)",
}

FAILURES: tuple[type[Exception], ...] = (
    RuntimeError,
    *(
        member
        for member in vars(onnxruntime_pybind11_state).values()
        if isinstance(member, type) and issubclass(member, Exception)
    ),
)
"""The exceptions of ONNX Runtime, which have no common base."""


def exact_session_options() -> onnxruntime.SessionOptions:
    """Return options under which ONNX Runtime evaluates every node as written.

    No graph optimization is on. From ENABLE_BASIC on, the runtime merges batch normalization into
    the weights before it, so that other floats are quantized next: measured, 10 to 22 % of them
    in the small networks of the QONNX zoo, 69 % in a 1-bit CNN, 16 % in a 4-bit MobileNet. It
    also drops additions of 0, and ENABLE_EXTENDED and ENABLE_ALL reorder sums. A float that moves
    across a rounding boundary moves the quantized value by a step. Without optimization, the zoo's
    networks with exact arithmetic equal QONNX's executor in every bit.

    The price is small, since constants have been folded before: 1 to 3 us per run of the small
    networks against ENABLE_BASIC, 1 to 3 % of the CNNs. ENABLE_ALL would run their convolutions
    1.2 to 2 times faster, in another memory layout; callers that prefer this pass options to
    `anybit.onnxruntime.session`.

    The runtime raises everything that it would log, so logging is off.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return options


def set_threads(options: onnxruntime.SessionOptions, threads: int = 0) -> None:
    """Set the number of threads of a run, and let them sleep where they share processors.

    The runtime itself ignores CPU quotas and affinity. A thread that spins takes the time of the
    thread that it waits for.

    Args:
        options: The options to change.
        threads: The number of threads; 0 for `num_threads()`, or one per physical core if that is
            the number of all processors.
    """
    count = threads or num_threads()
    options.intra_op_num_threads = 0 if not threads and count == os.cpu_count() else count
    if count > 1 and not may_spin(count):
        options.add_session_config_entry(_SPINNING, "0")


def make_session(
    model: ir.Model,
    options: onnxruntime.SessionOptions | None = None,
    providers: Sequence[Provider] | None = None,
    *,
    threads: int = 0,
) -> onnxruntime.InferenceSession:
    """Create a session for a model as it is, without folding or changing it.

    The arrays of the model are not copied, except with `options`.

    Args:
        model: The model.
        options: The exact ones by default. The operators are registered in options of your own,
            and entries that keep results exact are added unless they have a value.
        providers: Execution providers; the CPU's by default.
        threads: The number of threads of a run, unless options set it; see `set_threads`.

    Raises:
        ModelError: The model exceeds the limit of one message.
        Exception: Any error of ONNX Runtime for the model; see `extract_reason`.
    """
    own = options is not None
    options = options or _make_exact_options(len(model.graph), threads)
    message, tensors = serialize(model)
    if own:
        register(options)
        message, tensors = _embed_tensors(message, tensors)
    return _start_session(message, tensors, options, providers)


def make_session_from_message(
    message: bytes, tensors: Mapping[str, Array], nodes: int, *, threads: int = 0
) -> onnxruntime.InferenceSession:
    """Create the session of `make_session` from the output of `serialize`.

    `nodes` is the number of nodes of the model.
    """
    return _start_session(message, tensors, _make_exact_options(nodes, threads))


def _make_exact_options(nodes: int, threads: int) -> onnxruntime.SessionOptions:
    """Return the exact options for a model with that many nodes."""
    options = exact_session_options()
    set_threads(options, threads)
    options.enable_mem_reuse = nodes <= _MOST_NODES_TO_PLAN
    return options


def _start_session(
    message: bytes,
    tensors: Mapping[str, Array],
    options: onnxruntime.SessionOptions,
    providers: Sequence[Provider] | None = None,
) -> onnxruntime.InferenceSession:
    register_domains(options, message)
    for key, value in _EXACT.items():
        if not has_entry(options, key):
            options.add_session_config_entry(key, value)
    if tensors:
        values = [to_ort_value(array) for array in tensors.values()]
        options.add_external_initializers(list(tensors), values)
    return onnxruntime.InferenceSession(
        message,
        options,
        providers=["CPUExecutionProvider"] if providers is None else providers,
        enable_fallback=0,  # a failing provider is an error, not a banner and another provider
    )


def make_plain_session(
    model: ir.Model,
    entries: Mapping[str, str],
    level: onnxruntime.GraphOptimizationLevel,
    *,
    threads: int = 0,
) -> onnxruntime.InferenceSession:
    """Create a session without this package's operators and exact options.

    Raises:
        ModelError: The model exceeds the limit of one message.
        Exception: Any error of ONNX Runtime for the model; see `extract_reason`.
    """
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    set_threads(options, threads)
    options.log_severity_level = 4
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    message, _ = _embed_tensors(*serialize(model))
    return onnxruntime.InferenceSession(
        message, options, providers=["CPUExecutionProvider"], enable_fallback=0
    )


def run_session(
    session: onnxruntime.InferenceSession,
    feeds: Mapping[str, Array],
    selected: Collection[str] | None = None,
    *,
    kept: bool = True,
    options: onnxruntime.RunOptions | None = None,
) -> dict[str, Array]:
    """Run a session; return its numeric outputs, or the selected ones, by name.

    Feeds of other names are ignored. With `kept`, outputs are copied out of the runtime's memory:
    otherwise they hold much more of it than they need. `options` are run options of the runtime,
    with which another thread can end the run. Unlike the runtime's own `run`, bfloat16, float8 and
    types below 8 bits are supported.
    """
    taken = {argument.name for argument in session.get_inputs()}
    arrays = {name: np.asarray(array) for name, array in feeds.items() if name in taken}
    outputs = [
        output for output in session.get_outputs() if selected is None or output.name in selected
    ]
    names = [value.name for value in outputs]
    if not names:  # the runtime treats these as all names
        return {}
    if len(arrays) == len(taken) and _are_plain(arrays.values(), outputs):
        # Six times as fast, which matters for small models.
        results = session.run(names, arrays, options)
        return dict(zip(names, map(np.array, results) if kept else results, strict=True))
    values = {name: to_ort_value(array) for name, array in arrays.items()}
    results = session.run_with_ort_values(names, values, options)
    return {
        name: to_array(value)
        for name, value in zip(names, results, strict=True)
        if value.is_tensor() and value.data_type() != "tensor(string)"
    }


def evaluate(fragment: ir.Model, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Evaluate a subgraph as a session would; return all its outputs by name.

    One session runs the whole subgraph on one thread, because it is small. Its inputs are declared
    according to the feeds; their declarations in the fragment may be stale or missing.

    Raises:
        Exception: Any error of ONNX Runtime; see `extract_reason`.
    """
    for value in fragment.graph.inputs:
        array = feeds[str(value.name)]
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape(array.shape)
    return run_session(make_session(fragment, threads=1), feeds)


def _are_plain(arrays: Iterable[Array], outputs: Iterable[onnxruntime.NodeArg]) -> bool:
    """Return whether the types of arrays and outputs are NumPy's own."""
    return all(array.dtype in _PLAIN for array in arrays) and all(
        output.type in _PLAIN.values() for output in outputs
    )


def extract_reason(error: Exception) -> str:
    """Return the runtime's message without its codes, source positions and C++ signatures."""
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error))
    text = re.sub(r"/\S+\.(?:cc|h|cpp):\d+ .*?\)(?: const)? (?=[A-Z'])", "", text, flags=re.DOTALL)
    # Kernels of this package name the node themselves.
    text = re.sub(r"Non-zero status .* Name:'.*?' Status Message: (?=node ')", "", text)
    return text.removeprefix("Exception during initialization: ")


def _embed_tensors(message: bytes, tensors: dict[str, Array]) -> tuple[bytes, dict[str, Array]]:
    """Return the model with its tensors inside, if one message can hold them.

    Options that hold a model's tensors fail with every other model, so the caller's options, which
    may be reused, get none if possible.
    """
    if len(message) + sum(array.nbytes for array in tensors.values()) > _LARGEST_MESSAGE:
        return message, tensors
    proto = onnx.load_model_from_string(message)
    for initializer in proto.graph.initializer:
        array = tensors.get(initializer.name)
        if array is not None:
            initializer.CopyFrom(onnx.numpy_helper.from_array(array, initializer.name))
    return proto.SerializeToString(), {}
