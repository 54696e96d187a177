# SPDX-License-Identifier: Apache-2.0
"""Small files that ask for much: memory, time, or an end that never comes.

Each is made by a function of the number of its nodes. `BOMBS` are not meant well; `CHAINS` are, and
merely long.
"""

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OURS = "qonnx.custom_op.general"
_FLOAT = TensorProto.FLOAT

Arrays = dict[str, np.ndarray]


def _value(name: str, kind: int = _FLOAT, shape: Sequence[int] = (1, 4)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(
    nodes: list[onnx.NodeProto],
    output: str,
    constants: Arrays | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    inputs: Sequence[onnx.ValueInfoProto] = (),
) -> onnx.ModelProto:
    tensors = [
        numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()
    ]
    graph = helper.make_graph(nodes, "g", [_value("x"), *inputs], [_value(output)], tensors)
    imports = {"": 17, OURS: 1, "mine": 1}
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(domain, version) for domain, version in imports.items()],
        ir_version=8,
        functions=list(functions),
    )


def _used(nodes: list[onnx.NodeProto], vector: str, constants: Arrays) -> onnx.ModelProto:
    """Return a model whose result depends on the length of a vector."""
    nodes = [
        *nodes,
        helper.make_node("Shape", [vector], ["sizes"]),
        helper.make_node("Cast", ["sizes"], ["floats"], to=_FLOAT),
        helper.make_node("ReduceSum", ["floats"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["x", "sum"], ["y"]),
    ]
    return _model(nodes, "y", constants)


def _of_shape(shape: str, result: str, value: int) -> onnx.NodeProto:
    tensor = numpy_helper.from_array(np.array([value], np.int64))
    return helper.make_node("ConstantOfShape", [shape], [result], value=tensor)


def shapes_of_shapes(count: int) -> onnx.ModelProto:
    """Make arrays that each give the rank of the next one."""
    nodes = [_of_shape(f"v{at}", f"v{at + 1}", 64) for at in range(count)]
    return _used(nodes, f"v{count}", {"v0": np.array([4])})


def expanded(count: int) -> onnx.ModelProto:
    """Vectors of 2^27 elements, one after the other."""
    nodes = []
    for at in range(count):
        nodes.append(helper.make_node("Expand", ["one", "many"], [f"e{at}"]))
        nodes.append(_of_shape(f"e{at}", f"c{at}", 1))
    nodes.append(helper.make_node("Concat", [f"e{at}" for at in range(count)], ["all"], axis=0))
    return _used(nodes, "all", {"one": np.array([1]), "many": np.array([2**27])})


def doubled(count: int) -> onnx.ModelProto:
    """Make vectors that each repeat the one before twice."""
    nodes = [
        helper.make_node("Concat", [f"v{at}", f"v{at}"], [f"v{at + 1}"], axis=0)
        for at in range(count)
    ]
    return _used(nodes, f"v{count}", {"v0": np.array([1])})


def doubled_shapes(count: int) -> onnx.ModelProto:
    """Return the same with sizes of the input, which shape inference follows."""
    nodes = [helper.make_node("Shape", ["x"], ["v0"])]
    nodes += [
        helper.make_node("Concat", [f"v{at}", f"v{at}"], [f"v{at + 1}"], axis=0)
        for at in range(count)
    ]
    return _used(nodes, f"v{count}", {})


def gathered(count: int) -> onnx.ModelProto:
    """Gather a few elements millions of times."""
    nodes = [_of_shape("many", "zeros", 0)]
    nodes += [
        helper.make_node("Gather", [f"v{at}", "zeros"], [f"v{at + 1}"], axis=0)
        for at in range(count)
    ]
    return _used(nodes, f"v{count}", {"v0": np.array([1]), "many": np.array([2**26])})


def endless(count: int) -> onnx.ModelProto:
    """Loops over constants without an end."""
    nodes = []
    for at in range(count):
        body = helper.make_graph(
            [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Neg", ["p"], ["r"])],
            "body",
            [
                _value("i", TensorProto.INT64, []),
                _value("go", TensorProto.BOOL, []),
                _value("p", shape=[1]),
            ],
            [_value("on", TensorProto.BOOL, []), _value("r", shape=[1])],
        )
        nodes.append(helper.make_node("Loop", ["", "go_on", f"v{at}"], [f"v{at + 1}"], body=body))
    nodes.append(helper.make_node("Mul", ["x", f"v{count}"], ["y"]))
    return _model(nodes, "y", {"go_on": np.array(True), "v0": np.ones(1, np.float32)})


def nested(count: int) -> onnx.ModelProto:
    """Branches inside branches."""
    inner = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["b0"])], "inner", [], [_value("b0")]
    )
    for at in range(1, count + 1):
        other = helper.make_graph(
            [helper.make_node("Neg", ["x"], [f"o{at}"])], "other", [], [_value(f"o{at}")]
        )
        node = helper.make_node("If", ["c"], [f"b{at}"], then_branch=inner, else_branch=other)
        inner = helper.make_graph([node], "inner", [], [_value(f"b{at}")])
    return _model(list(inner.node), f"b{count}", inputs=[_value("c", TensorProto.BOOL, [])])


def calls(count: int) -> onnx.ModelProto:
    """Functions that each call the one before twice."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    bodies = [[helper.make_node("Neg", ["a"], ["b"])]]
    for at in range(count):
        first = helper.make_node(f"f{at}", ["a"], ["t"], domain="mine")
        bodies.append([first, helper.make_node(f"f{at}", ["t"], ["b"], domain="mine")])
    functions = [
        helper.make_function("mine", f"f{at}", ["a"], ["b"], nodes, imports)
        for at, nodes in enumerate(bodies)
    ]
    call = helper.make_node(f"f{count}", ["x"], ["y"], domain="mine")
    return _model([call], "y", functions=functions)


_PARAMETERS = {"s": np.float32(0.5), "z": np.float32(0), "b": np.float32(4)}


def standard(count: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Neg", [f"v{at}"], [f"v{at + 1}"]) for at in range(count)]
    nodes[0].input[0] = "x"
    return _model(nodes, f"v{count}")


def identities(count: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Identity", [f"v{at}"], [f"v{at + 1}"]) for at in range(count)]
    nodes[0].input[0] = "x"
    return _model(nodes, f"v{count}")


def constants(count: int) -> onnx.ModelProto:
    nodes = [helper.make_node("Neg", [f"v{at}"], [f"v{at + 1}"]) for at in range(count)]
    nodes.append(helper.make_node("Add", ["x", f"v{count}"], ["y"]))
    return _model(nodes, "y", {"v0": np.ones((1, 4), np.float32)})


def quantizers(count: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("IntQuant", [f"v{at}", *_PARAMETERS], [f"v{at + 1}"], domain=OURS)
        for at in range(count)
    ]
    nodes[0].input[0] = "x"
    return _model(nodes, f"v{count}", dict(_PARAMETERS))


def scaled(count: int) -> onnx.ModelProto:
    """Quantizers with scales of their own."""
    constants = dict(_PARAMETERS) | {f"s{at}": np.float32(0.5 + at) for at in range(count)}
    nodes = [
        helper.make_node("IntQuant", [f"v{at}", f"s{at}", "z", "b"], [f"v{at + 1}"], domain=OURS)
        for at in range(count)
    ]
    nodes[0].input[0] = "x"
    return _model(nodes, f"v{count}", constants)


def native(count: int) -> onnx.ModelProto:
    nodes = []
    for at in range(count // 2):
        nodes.append(helper.make_node("QuantizeLinear", [f"v{at}", "s", "n"], [f"q{at}"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{at}", "s", "n"], [f"v{at + 1}"]))
    nodes[0].input[0] = "x"
    return _model(nodes, f"v{count // 2}", {"s": np.float32(0.5), "n": np.int8(0)})


def moved_codes(count: int) -> onnx.ModelProto:
    """Make a quantizer whose codes are moved repeatedly, and read after every move."""
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "n"], ["q0"])]
    for at in range(count // 3):
        nodes.append(helper.make_node("Transpose", [f"q{at}"], [f"q{at + 1}"], perm=[0, 1]))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{at + 1}", "s", "n"], [f"d{at}"]))
        nodes.append(helper.make_node("Add", [f"v{at}", f"d{at}"], [f"v{at + 1}"]))
    nodes[3].input[0] = "x"
    return _model(nodes, f"v{count // 3}", {"s": np.float32(0.5), "n": np.int8(0)})


def foreign_codes(count: int) -> onnx.ModelProto:
    """Make the model of `moved_codes` with codes that no quantizer computes."""
    model = moved_codes(count)
    model.graph.node[0].CopyFrom(helper.make_node("Cast", ["x"], ["q0"], to=TensorProto.INT8))
    return model


def weights(count: int) -> onnx.ModelProto:
    nodes, constants = [], dict(_PARAMETERS)
    for at in range(count // 4):
        constants[f"w{at}"] = np.eye(4, dtype=np.float32) + at
        quantized = [f"w{at}", f"s{at}", "z", "b"]
        nodes += [
            helper.make_node("Mul", ["s", "s"], [f"s{at}"]),
            helper.make_node("IntQuant", quantized, [f"q{at}"], domain=OURS),
            helper.make_node("Transpose", [f"q{at}"], [f"t{at}"]),
            helper.make_node("MatMul", [f"v{at}", f"t{at}"], [f"v{at + 1}"]),
        ]
    nodes[3].input[0] = "x"
    return _model(nodes, f"v{count // 4}", constants)


def _quantized(at: int, source: str) -> onnx.NodeProto:
    return helper.make_node("IntQuant", [source, *_PARAMETERS], [f"q{at}"], domain=OURS)


def layers(count: int) -> onnx.ModelProto:
    """Products of codes one behind another: fewer, because each takes some 10 ms."""
    nodes = []
    for at in range(count // 8):
        nodes.append(_quantized(at, f"v{at}"))
        nodes.append(helper.make_node("MatMul", [f"q{at}", "w"], [f"v{at + 1}"]))
    nodes[0].input[0] = "x"
    weights = np.arange(-8, 8, dtype=np.float32).reshape(4, 4)
    return _model(nodes, f"v{count // 8}", {**_PARAMETERS, "w": weights})


def rounded(count: int) -> onnx.ModelProto:
    """Return the same with scales of full precision: float32 rounds every product."""
    model = layers(count)
    (scale,) = (tensor for tensor in model.graph.initializer if tensor.name == "s")
    scale.CopyFrom(numpy_helper.from_array(np.array(0.1, np.float32), "s"))
    return model


def residuals(count: int) -> onnx.ModelProto:
    """Products of codes that are added to what they are of."""
    nodes = []
    for at in range(count // 12):
        nodes.append(_quantized(at, f"v{at}"))
        nodes.append(helper.make_node("MatMul", [f"q{at}", "w"], [f"p{at}"]))
        nodes.append(_quantized(at, f"p{at}"))
        nodes[-1].output[0] = f"r{at}"
        nodes.append(helper.make_node("Add", [f"q{at}", f"r{at}"], [f"v{at + 1}"]))
    nodes[0].input[0] = "x"
    weights = np.arange(-8, 8, dtype=np.float32).reshape(4, 4)
    return _model(nodes, f"v{count // 12}", {**_PARAMETERS, "w": weights})


def watched(count: int) -> onnx.ModelProto:
    """Products of codes whose sums are read by a function that no integers compute."""
    model = rounded(count)
    for at in range(1, count // 8):
        model.graph.node.append(helper.make_node("Softmax", [f"v{at}"], [f"m{at}"]))
        model.graph.output.append(_value(f"m{at}"))
    return model


def summed(count: int) -> onnx.ModelProto:
    """Return a sum that grows by one product after the other."""
    nodes = [_quantized(0, "x"), helper.make_node("Relu", ["q0"], ["v0"])]
    for at in range(count // 2):
        nodes.append(helper.make_node("Neg", [f"v{at}"], [f"n{at}"]))
        nodes.append(helper.make_node("Max", [f"v{at}", f"n{at}"], [f"v{at + 1}"]))
    return _model(nodes, f"v{count // 2}", dict(_PARAMETERS))


def joined(count: int) -> onnx.ModelProto:
    """Products of one tensor of codes, each by itself, and added up at the end."""
    nodes = [_quantized(0, "x")]
    for at in range(count // 12):
        nodes.append(helper.make_node("MatMul", ["q0", "w"], [f"p{at}"]))
        nodes.append(_quantized(at + 1, f"p{at}"))
        nodes.append(helper.make_node("Add", [f"v{at}", f"q{at + 1}"], [f"v{at + 1}"]))
    nodes[3].input[0] = "q0"
    weights = np.arange(-8, 8, dtype=np.float32).reshape(4, 4)
    return _model(nodes, f"v{count // 12}", {**_PARAMETERS, "w": weights})


def multiplied(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a chain followed by products with quantized weights: MatMul and Gemm."""
    (result,) = model.graph.output[:1]
    constants = {f"p{name}": value for name, value in _PARAMETERS.items()} | {"weights": np.eye(4)}
    model.graph.node.extend(
        [
            helper.make_node("IntQuant", ["weights", "ps", "pz", "pb"], ["wq"], domain=OURS),
            helper.make_node("MatMul", [result.name, "wq"], ["product"]),
            helper.make_node("Gemm", ["product", "wq"], ["products"]),
        ]
    )
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value, np.float32), name)
        for name, value in constants.items()
    )
    result.name = "products"
    return model


BOMBS: dict[str, tuple[Callable[[int], onnx.ModelProto], int]] = {
    "shapes of shapes": (shapes_of_shapes, 6),
    "expanded": (expanded, 10),
    "doubled": (doubled, 50),
    "doubled shapes": (doubled_shapes, 50),
    "gathered": (gathered, 4),
    "endless": (endless, 5),
    "nested": (nested, 25),
    "calls": (calls, 20),
}
CHAINS: dict[str, Callable[[int], onnx.ModelProto]] = {
    make.__name__: make
    for make in (
        *(standard, identities, constants, quantizers, scaled, native),
        *(moved_codes, foreign_codes, weights),
        *(layers, rounded, residuals, watched, summed, joined),
    )
}
