# SPDX-License-Identifier: Apache-2.0
"""Conversions to QuantizeLinear and back, and runs of the results, for the tests of both."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper
from small_models import DOMAIN, array, model, node

from anybit.formats import FloatFormat
from anybit.onnx import read
from anybit.onnx.forms import Form
from anybit.onnx.operators.registry import find_operator, get_keywords
from anybit.onnx.passes import FoldConstants, FromQdq, InferShapes, LiftOpset, Normalize, ToQdq
from anybit.onnxruntime import session

# Without and with the runtime's own rewriting.
LEVELS = (
    onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
)


class Written:
    """A model after `ToQdq`."""

    def __init__(self, proto: Any, style: str = "qdq", opset_limit: int = 25, **options: Any):
        self.model = read(proto)
        Normalize()(self.model)
        FoldConstants(operators=False)(self.model)
        InferShapes()(self.model)
        native = ToQdq(style=Form(style), opset_limit=opset_limit, **options)
        LiftOpset(native.find_needed_opset(self.model))(self.model)
        report = native(self.model)
        Normalize()(self.model)
        self.steps, self.reasons = report.steps, report.left

    @property
    def proto(self) -> onnx.ModelProto:
        return ir.to_proto(self.model)


class Lifted:
    """A model after `FromQdq`."""

    def __init__(self, source: Any, **options: Any):
        self.model = read(source)
        for prepared in (Normalize(), FoldConstants(operators=False), InferShapes()):
            prepared(self.model)
        self.steps = FromQdq(**options)(self.model).steps
        Normalize()(self.model)

    @property
    def proto(self) -> onnx.ModelProto:
        return ir.to_proto(self.model)

    @property
    def exact(self) -> bool:
        return all(step.exact for step in self.steps)


def dtypes(model: ir.Model) -> dict[str, int]:
    """Return the number of initializers of each type except float32."""
    counts: dict[str, int] = {}
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        name = value.const_value.dtype.name.lower()
        if name != "float":
            counts[name] = counts.get(name, 0) + 1
    return counts


def quantizers(model: ir.Model) -> list[dict[str, Any]]:
    """Return the parameters and attributes of our nodes that change values."""
    return [_parameters(node) for node in model.graph.all_nodes() if node.domain == DOMAIN]


def _parameters(node: ir.Node) -> dict[str, Any]:
    operator = find_operator(node)
    assert operator is not None
    parameters: dict[str, Any] = {"operator": operator.name, **get_keywords(node, operator)}
    for declared, value in zip(operator.inputs[1:], node.inputs[1:], strict=False):
        if value is not None and value.const_value is not None:
            array = value.const_value.numpy().astype(np.float64)
            # Leading dimensions of one element say nothing about the axis.
            shape = array.shape[
                next((i for i, n in enumerate(array.shape) if n != 1), array.ndim) :
            ]
            parameters[declared.name] = array.reshape(shape).tolist()
    return parameters


def checked(proto: onnx.ModelProto) -> onnx.ModelProto:
    onnx.checker.check_model(proto, full_check=True)
    return proto


def runs(proto: onnx.ModelProto, **feeds: np.ndarray) -> Iterator[np.ndarray]:
    """Return the first output in ONNX Runtime, without and with optimizations."""
    for level in LEVELS:
        yield outputs(proto, feeds, level)[0]


def outputs(
    proto: onnx.ModelProto, feeds: dict[str, np.ndarray], level: Any = LEVELS[0]
) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def telling(scale: Any, steps: int = 40) -> np.ndarray:
    """float32 numbers where rounding and clipping show: ties, their neighbours, extremes."""
    halves = np.arange(-2 * steps, 2 * steps + 1, dtype=np.float64) / 2
    edges = np.array([2.0**e + d for e in range(1, 17) for d in (-1.5, -1, -0.5, 0, 0.5, 1)])
    halves = np.concatenate([halves, edges, -edges])
    with np.errstate(all="ignore"):
        near = (halves * float(scale)).astype(np.float32)
        huge = np.float32([1e9, 2.5e9, 4e18, 1e30, 3.4e38])
        tiny = np.float32([1e-45, 1e-40, 1e-30, 0])
        numbers = np.concatenate([near, huge, -huge, tiny, -tiny])
        below, above = (np.nextafter(numbers, np.float32(to)) for to in (-np.inf, np.inf))
        random = np.random.default_rng(0).standard_normal(64).astype(np.float32) * np.float32(scale)
        everything = np.concatenate([numbers, below, above, random, 9 * random])
    # Overflow would give infinities; there are two, whatever the scale.
    everything[~np.isfinite(everything)] = 0
    return np.concatenate([everything, np.float32([np.inf, -np.inf])])


def columns(scales: np.ndarray) -> np.ndarray:
    """Return a column of telling values for every scale."""
    return np.stack([telling(scale) for scale in scales], axis=1)


def qdq(
    nodes: list[onnx.NodeProto],
    tensors: list[onnx.TensorProto],
    *,
    shape: tuple[int | str, ...] = ("n",),
    output: tuple[int | str, ...] | None = None,
    opset: int = 21,
    ir_version: int = 10,
) -> onnx.ModelProto:
    """Return a model of standard operators, from float x to float y."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "graph",
        [value("x", onnx.TensorProto.FLOAT, shape)],
        [value("y", onnx.TensorProto.FLOAT, shape if output is None else output)],
        tensors,
    )
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


STYLES = ("qdq", "qcdq")


def int_model(scale: Any = 0.3, zeropt: Any = 0, bits: Any = 4, **options: Any) -> onnx.ModelProto:
    """x -> Quant -> y; x has a column for each of several scales."""
    shape = options.pop("shape", ["n", *np.shape(scale)])
    constants = {"s": array(scale), "z": array(zeropt), "b": array(bits)}
    return model([node("Quant", "x s z b", **options)], constants, inputs={"x": shape})


def weight_model(
    kind: str, parameters: dict[str, Any], weight: np.ndarray, **options: Any
) -> onnx.ModelProto:
    """Make y = Quantizer(weight), reshaped to a shape that is known when it runs."""
    nodes = [
        node(kind, " ".join(["w", *parameters]), "q", **options),
        node("Add", "x q", domain=""),
    ]
    return model(nodes, {"w": weight, **parameters}, inputs={"x": [1]}, opsets={})


ZERO = np.zeros(1, np.float32)


TYPES = {
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "int4": TensorProto.INT4,
    "uint4": TensorProto.UINT4,
    "int16": TensorProto.INT16,
    "uint16": TensorProto.UINT16,
}


def tensor(name: str, values: Any, kind: int = TensorProto.FLOAT) -> onnx.TensorProto:
    flat = np.asarray(values)
    return helper.make_tensor(name, kind, flat.shape, flat.ravel().tolist())


def plain(kind: str, inputs: str, output: str = "y", **attributes: Any) -> onnx.NodeProto:
    name = attributes.pop("name", f"the_{kind}_{output}")
    return helper.make_node(kind, inputs.split(), [output], name=name, **attributes)


def pair(
    scale: Any = 0.5,
    zeropt: Any = 0,
    kind: str = "int8",
    *,
    clip: tuple[int, int] | None = None,
    middle: Sequence[onnx.NodeProto] = (),
    shape: tuple[int | str, ...] = ("n",),
    output: tuple[int | str, ...] | None = None,
    opset: int = 21,
    **attributes: Any,
) -> onnx.ModelProto:
    """Make x -> QuantizeLinear -> [Clip] -> DequantizeLinear -> y; `middle` goes from q to t."""
    zeropt = np.broadcast_to(zeropt, np.shape(scale))
    tensors = [tensor("s", scale), tensor("z", zeropt, TYPES[kind])]
    last = "t" if middle else "q"
    nodes = [plain("QuantizeLinear", "x s z", "q", **attributes), *middle]
    if clip is not None:
        tensors += [tensor(name, code, TYPES[kind]) for name, code in zip("ab", clip, strict=True)]
        nodes.append(plain("Clip", f"{last} a b", "c"))
        last = "c"
    nodes.append(plain("DequantizeLinear", f"{last} s z", **attributes))
    return qdq(nodes, tensors, shape=shape, output=output, opset=opset)


def check(proto: onnx.ModelProto, x: np.ndarray, **options: Any) -> Lifted:
    """Raise, and see that no value changes."""
    (expected, _) = runs(proto, x=x)
    lifted = Lifted(proto, **options)
    np.testing.assert_array_equal(session(lifted.model).run(None, {"x": x})[0], expected)
    return lifted


def only(lifted: Lifted) -> dict[str, Any]:
    (quantizer,) = quantizers(lifted.model)
    return quantizer


def integer(scale: Any, bits: int, **options: Any) -> dict[str, Any]:
    defaults = {"zeropt": 0.0, "signed": True, "narrow": False, "rounding_mode": "ROUND"}
    scale = np.asarray(scale, np.float32).astype(np.float64).tolist()
    return {"operator": "int_quant", "scale": scale, "bitwidth": float(bits), **defaults, **options}


def weights(
    codes: Any,
    kind: int,
    scale: Any,
    zeropt: Any = None,
    *,
    clip: tuple[int, int] | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return the model y = x + DequantizeLinear(codes)."""
    tensors = [tensor("w", codes, kind), tensor("s", scale)]
    last, nodes = "w", []
    if clip is not None:
        tensors += [tensor(name, code, kind) for name, code in zip("ab", clip, strict=True)]
        nodes.append(plain("Clip", "w a b", "c"))
        last = "c"
    if zeropt is not None:
        tensors.append(tensor("z", zeropt, kind))
    last += " s z" if zeropt is not None else " s"
    nodes += [plain("DequantizeLinear", last, "d", **attributes), plain("Add", "x d")]
    return qdq(nodes, tensors, shape=(1,), output=np.shape(codes))


def float_model(scale: Any, float_format: FloatFormat, **options: Any) -> onnx.ModelProto:
    e, m, bias, largest = float_format
    constants = {"s": array(scale), "e": e, "m": m, "bias": bias, "largest": largest}
    nodes = [node("FloatQuant", "x s e m bias largest", **options)]
    return model(nodes, constants, inputs={"x": ["n", *np.shape(scale)]})


WEIGHT = np.random.default_rng(2).standard_normal((6, 5)).astype(np.float32)
CHANNELS = np.linspace(0.1, 0.5, 6, dtype=np.float32)[:, None]
