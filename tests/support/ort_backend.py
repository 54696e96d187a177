# SPDX-License-Identifier: Apache-2.0
"""Operators as models of one node in ONNX Runtime: the back-end `ort`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from anybit.onnx.library import register_domains
from anybit.onnx.operators.registry import CANONICAL_DOMAINS
from anybit.ops import OPERATORS, Input, Operator

BY_NAME = {operator.name: operator for operator in OPERATORS}
DOMAINS = sorted({*CANONICAL_DOMAINS, *(operator.onnx_domain for operator in OPERATORS)})
NODE = "the_node"
BFLOAT16 = onnx.TensorProto.BFLOAT16
TARGETS = {"s8": np.int8, "u8": np.uint8}


class RefusedError(TypeError, ValueError):
    """Error of the runtime with NumPy's names of types: its exceptions have no common base."""


Shape: TypeAlias = Sequence[int | str | None] | None
Declared: TypeAlias = Mapping[str, tuple[Any, Shape]]  # dtype and shape by name


def model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Declared,
    outputs: Declared,
    constants: Mapping[str, np.ndarray],
    *,
    ir_version: int = 9,
    opset: int = 17,
) -> bytes:
    """Return a serialized model; a dtype of None leaves an output's type to the runtime."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [value_info(name, *declared) for name, declared in inputs.items()],
        [value_info(name, *declared) for name, declared in outputs.items()],
        [numpy_helper.from_array(contiguous(array), name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", opset)]
    written = graph.SerializeToString()
    imports += [helper.make_opsetid(domain, 1) for domain in DOMAINS if domain.encode() in written]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
    return proto.SerializeToString()


def value_info(name: str, dtype: Any, shape: Shape) -> onnx.ValueInfoProto:
    if dtype is None:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
    )


def session(
    file: bytes, *, threads: int = 1, entries: Mapping[str, str] | None = None
) -> onnxruntime.InferenceSession:
    """Return a session with our operators of the domains that the file names, without passes.

    All operators at once cost more than the rest of such a session.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    for key, value in (entries or {}).items():
        options.add_session_config_entry(key, value)
    register_domains(options, file)
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def evaluate(operator: str, *inputs: Any, constant: bool = True, **attributes: Any) -> np.ndarray:
    """Call an operator: x is an input of unknown sizes, parameters are constants or inputs."""
    declared = BY_NAME[operator]
    values = {"x": np.asarray(inputs[0])}
    names = ["x"]
    for value, described in zip(inputs[1:], declared.inputs[1:], strict=False):
        names.append("" if value is None else described.name)
        if value is not None:
            values[described.name] = as_tensor(value, described)
    while not names[-1]:
        names.pop()
    nodes = [node(declared, names, ["y"], **attributes)]
    constants = {name: values.pop(name) for name in names[1:] if name and constant}
    y_type = values["x"].dtype
    if declared.result_dtype is not None:
        target = TARGETS.get(attributes.get("dtype", "s8"), np.int8)
        y_type = np.dtype(target if operator == "dynamic_quantize" else np.float32)
    values, outputs = add_casts(nodes, values, {"y": (y_type, None)})
    feeds = {name: contiguous(array) for name, array in values.items()}
    shapes = {name: [f"{name}_{axis}" for axis in range(a.ndim)] for name, a in feeds.items()}
    described_feeds = {name: (array.dtype, shapes[name]) for name, array in feeds.items()}
    try:
        file = model(nodes, described_feeds, outputs, constants)
        (y,) = session(file).run(None, feeds)
    except Exception as error:
        text = str(error).replace("tensor(double)", "float64").replace("tensor(float)", "float32")
        assert NODE in text
        raise RefusedError(text) from error
    return y.astype(y_type)


def add_casts(
    nodes: list[onnx.NodeProto], values: dict[str, np.ndarray], outputs: Declared
) -> tuple[dict[str, np.ndarray], Declared]:
    """Let the model itself convert from and to bfloat16, which the runtime's NumPy has not."""
    operator = nodes[0]
    for name, array in values.items():
        if array.dtype == ml_dtypes.bfloat16:
            nodes.insert(0, helper.make_node("Cast", [name], [f"{name}_"], to=BFLOAT16))
            operator.input[list(operator.input).index(name)] = f"{name}_"
            values = values | {name: array.astype(np.float32)}
    if outputs["y"][0] != ml_dtypes.bfloat16:
        return values, outputs
    operator.output[0] = "y_"
    nodes.append(helper.make_node("Cast", ["y_"], ["y"], to=onnx.TensorProto.FLOAT))
    return values, {"y": (np.float32, None)}


def node(
    declared: Operator, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
) -> onnx.NodeProto:
    """Return a node of an operator, from attributes with Python names."""
    spelled = {attribute.name: attribute.onnx_name for attribute in declared.attributes}
    return helper.make_node(
        declared.onnx_name,
        inputs,
        outputs,
        NODE,
        domain=declared.onnx_domain,
        **{
            spelled[name]: int(value) if isinstance(value, bool) else value
            for name, value in attributes.items()
        },
    )


def as_tensor(value: Any, described: Input) -> np.ndarray:
    """Return a parameter as an array; numbers and lists get the first accepted type."""
    if not hasattr(value, "dtype") and described.domain is not None and described.domain.dtypes:
        return np.asarray(value, described.domain.dtypes[0])
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind == "U" else array


def contiguous(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(array.shape)
