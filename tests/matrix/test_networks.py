# SPDX-License-Identifier: Apache-2.0
"""Tests of compiled programs in all supported versions of ONNX Runtime.

`tests/programs/ort_matrix.py` runs them in one environment per ONNX Runtime.
"""

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import anybit.onnxruntime
from anybit.compiler.program import program as p
from anybit.compiler.program import reference, versions
from anybit.compiler.program.encoding import Encoded, encode

PARTS = ("words", "bytes", "integers", "floats")
ONE = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)


def ints(*values: int) -> Any:
    return np.array(values, np.int32)


def program(inputs: int = 1, nan: int = -1) -> p.Program:
    """Return a program of one binary product per input, and the last input's codes as an output."""
    rng = np.random.default_rng(0)
    ports, products, quantizers = [], [], []
    for i in range(inputs):
        ports.append(p.Port(ints(5, 2, 3), 2, 3, 5, 1))
        quantizers.append(p.Quantize(i, i, ints(1), np.float32([0]), nan))
        weights = rng.integers(0, 256, 5, np.uint8)
        epilogue = p.Arithmetic(np.float32([1, 0.5, 2, 0.1]), (p.Step(0, np.float32([0.3])),))
        window = p.Window(1, 2, 1, 1, 1, 1, 0, 0, 0, 1)
        products.append(p.Product(i, i, window, 1, 1, weights, ints(-1, 1), epilogue))
    outputs = [p.Port(ints(4, 2, 3), 2, 3, 4, 1)] * inputs + [p.Port(ints(30), 2, 3, 5, 1)]
    last = p.Dequantize(inputs - 1, inputs, np.float32([-1, 1]))
    tensors = (p.Tensor(2, 3, 5, -1, 2, 2),) * inputs
    return p.Program(tuple(ports), tuple(outputs), tensors, (*quantizers, *products, last))


def session(
    encoded: Encoded, inputs: int = 1, outputs: int = 2, constant: bool = True, threads: int = 0
) -> onnxruntime.InferenceSession:
    tensors = [numpy_helper.from_array(getattr(encoded, part), part) for part in PARTS]
    xs, ys = [f"x{i}" for i in range(inputs)], [f"y{i}" for i in range(outputs)]
    node = helper.make_node("IntegerNetwork", [*PARTS, *xs], ys, "the_node", domain="anybit")
    infos = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
        for names in (xs, ys)
    ]
    if not constant:
        infos[0].append(helper.make_tensor_value_info("words", TensorProto.INT64, [None]))
    graph = helper.make_graph([node], "graph", *infos, tensors)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("anybit", 1)]
    file = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    anybit.onnxruntime.register(options)
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("inputs", [1, 2, 7])
@pytest.mark.parametrize("rows", [0, 1, 40])
def test_program_matches_reference(inputs: int, rows: int) -> None:
    made = program(inputs)
    loaded = session(encode(made), inputs, inputs + 1)
    shape = rows, 5, 2, 3
    xs = [np.random.default_rng(i).normal(0, 1, shape).astype(np.float32) for i in range(inputs)]
    actual = loaded.run(None, {f"x{i}": x for i, x in enumerate(xs)})
    for one, other in zip(actual, reference.run(made, xs), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 5, 2, 4), np.float32), r"shape \(n, 5, 2, 3\), got \(2, 5, 2, 4\)"),
        (np.zeros(30, np.float32), r"shape \(n, 5, 2, 3\), got \(30\)"),
        (np.full((2, 5, 2, 3), np.nan, np.float32), "has NaN"),
    ],
)
def test_program_rejects_bad_inputs(x: Any, message: str) -> None:
    with pytest.raises(Exception, match=f"the_node.*{message}"):
        session(encode(program())).run(None, {"x0": x})


def test_damaged_program_does_not_load() -> None:
    encoded = encode(program())
    words = encoded.words.copy()
    words[3] = 10**9
    with pytest.raises(Exception, match=r"the_node.*damaged.*compile the model again"):
        session(Encoded(words, encoded.bytes, encoded.integers, encoded.floats))
    words = encoded.words.copy()
    words[0] = versions.VERSION + 1
    with pytest.raises(Exception, match=r"the_node.*install a newer anybit"):
        session(Encoded(words, encoded.bytes, encoded.integers, encoded.floats))


def test_program_must_be_constant() -> None:
    with pytest.raises(Exception, match=r"the_node.*words must be a constant"):
        session(encode(program()), constant=False)


def test_program_rejects_nodes_with_other_ports() -> None:
    with pytest.raises(Exception, match="the program has 2 inputs and 3 outputs, the node 1 and 2"):
        session(encode(program(2)))


def convolutions() -> p.Program:
    """Return a program with enough work for several threads."""
    rng = np.random.default_rng(0)
    window = p.Window(3, 3, 1, 1, 1, 1, 1, 1, 1, 1)
    instructions: list[Any] = [p.Quantize(0, 0, ints(1), np.float32([-1, 0, 1]), 0)]
    for i in range(3):
        thresholds = np.sort(rng.integers(-99, 99, (64, 3)).astype(np.int32)).ravel()
        epilogue = p.Thresholds(np.ones(64, np.int32), thresholds)
        weights, values = rng.integers(0, 256, 64 * 9 * 64 // 4, np.uint8), ints(-2, -1, 0, 1)
        instructions.append(p.Product(i, i + 1, window, 1, 2, weights, values, epilogue))
    instructions.append(p.Dequantize(3, 0, np.arange(4, dtype=np.float32)))
    port = p.Port(ints(64, 20, 20), 20, 20, 64, 1)
    tensors = (p.Tensor(20, 20, 64, 0, 1, 4),) * 4
    return p.Program((port,), (port,), tensors, tuple(instructions))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_program_does_not_depend_on_session_threads(threads: int) -> None:
    made = convolutions()
    loaded = session(encode(made), outputs=1, threads=threads)
    for rows in (1, 3, 40):
        x = np.random.default_rng(rows).normal(0, 1, (rows, 64, 20, 20)).astype(np.float32)
        (expected,) = reference.run(made, [x])
        for _ in range(3):
            np.testing.assert_array_equal(loaded.run(None, {"x0": x})[0], expected)
